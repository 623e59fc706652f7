"""What is only true on a GPU, tested where there is one: `make gpu`."""
