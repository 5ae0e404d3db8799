"""What is right: replays in several arithmetics, and the one judge of rounding."""
