"""Figures and pictures drawn from groups and logs; imported by the training loop, never the other way round."""
