"""What the benchmark commands share: data, work, contestants, measuring, reports."""
