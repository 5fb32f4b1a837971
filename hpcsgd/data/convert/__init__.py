"""From text, arrays and archives to stores of encoded rows."""
