"""The command line. `main` holds the table of commands, `options` what several of them take."""
