//! The pool of Python processes that run `python` steps.
