"""What tools/gpu-check is made of: a file per noun, and stages.py, which has the order."""
