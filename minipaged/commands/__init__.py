"""What the command line runs: generate, chat, simulate, lessons and doctor, and the way to the benches."""
