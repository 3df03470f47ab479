"""What the benches share: the model, sizes, meters, and what is printed and kept."""
