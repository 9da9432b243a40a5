"""The workshop of the book: export, run and check its notebooks."""
