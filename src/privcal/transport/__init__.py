"""How a question gets to a source elsewhere, and its answer back: by mail, or in a federation."""
