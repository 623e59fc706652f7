"""Long work in a folder that can be stopped and resumed: locks, records, steps, results."""
