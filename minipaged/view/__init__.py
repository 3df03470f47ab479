"""One recorder writes the trace of a run; a terminal view and a browser view draw what its lines say."""
