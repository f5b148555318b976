"""Stage 2 of S1: a policy trained on the server by the stage-1 selector's judgement, without any human label."""
