"""The recipes of bertjax in other libraries, for the benchmarks. Needs the extra `bench`."""
