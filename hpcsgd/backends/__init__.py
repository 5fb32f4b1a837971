"""What one device can do, behind one protocol."""
