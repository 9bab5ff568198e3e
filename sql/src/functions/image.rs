//! Image functions.
