"""Sessions that workers hold, as their programs report them."""
