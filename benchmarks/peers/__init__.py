"""What other people's libraries make of our recipes; for the benchmarks alone, needs the extra `bench`."""
