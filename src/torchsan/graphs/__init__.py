"""What was computed: an FX graph as data."""
