"""Other runtimes, each in an environment of its own: these scripts import nothing of unmask."""
