//! Tensor functions: `tensor`, `tensor_*`.
//!
//! Owns: making fixed-shape tensors out of lists, looking into tensors of fixed and of variable shape. A tensor of one shape is
//! `arrow.fixed_shape_tensor` over a fixed-size list, row-major. Indexes count from 0, as in numpy. Must not know: how tensors are stored.

mod make;
mod read;
mod shape;

#[cfg(test)]
mod tests;

use datafusion::logical_expr::ScalarUDF;

#[cfg(test)]
pub(crate) use shape::is_fixed_tensor;

/// Every tensor function, ready to be registered.
pub fn tensor_functions() -> Vec<ScalarUDF> {
    let make = make::Op::ALL.iter().map(|op| ScalarUDF::from(make::MakeUdf::new(*op)));
    let read = read::Op::ALL.iter().map(|op| ScalarUDF::from(read::ReadUdf::new(*op)));
    make.chain(read).collect()
}
