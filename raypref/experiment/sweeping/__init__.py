"""A sweep: many runs of one search space, through Ray Tune."""
