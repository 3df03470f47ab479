"""What the command line runs: generate, chat, doctor and bench."""
