"""The HTML pages, one module each."""
