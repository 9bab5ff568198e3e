//! The SQL functions that Forebay adds: images, tensors, random draws.
//!
//! Owns: which functions exist where. Steps get all of them; queries get all but the random ones, which are functions of a row's key and of
//! the step they stand in. Must not know: sessions, plans.
//!
//! | in steps only | |
//! |---|---|
//! | `random_uniform()`, `random_uniform(low, high)` | DOUBLE in `[low, high)`, by default `[0, 1)` |
//! | `random_int(low, high)` | BIGINT in `low .. high`, the end excluded |
//! | `random_normal()`, `random_normal(mean, deviation)` | DOUBLE |
//! | `random_bool()`, `random_bool(p)` | true with probability p, by default one half |
//! | `random_choice(list)` | one element; null of an empty list |
//! | `epoch()`, `seed()` | BIGINT and UINT64: the epoch and the pipeline's seed; behind the cut the pass and the job's seed |
//!
//! | everywhere | |
//! |---|---|
//! | `tensor(list, d0, d1, ... [, 'uint8'])` | a tensor of that shape out of a list of numbers; lengths and type are literals |
//! | `tensor_reshape(t, d0, ...)`, `tensor_cast(t, 'float32')`, `tensor_scale(t, factor [, offset])` | a tensor again |
//! | `tensor_to_list(t)`, `tensor_shape(t)`, `tensor_get(t, i, j, ...)` | elements row-major; axis lengths; one element counted from 0 |
//! | `tensor_min(t)`, `tensor_max(t)`, `tensor_mean(t)`, `tensor_sum(t)` | an element; DOUBLE |
//!
//! Images are in [`image`].

pub(crate) mod capped;
pub mod image;
pub mod random;
pub mod tensor;

use std::sync::Arc;

use datafusion::logical_expr::ScalarUDF;

/// Functions that users may call everywhere.
pub fn pure_functions() -> Vec<Arc<ScalarUDF>> {
    let images = image::image_functions().into_iter().filter(|f| !is_random(f.name()));
    images.chain(tensor::tensor_functions()).map(Arc::new).collect()
}

/// Functions that a step may call: the pure ones, the random ones, `epoch()`, `seed()` and the hidden draw.
pub fn step_functions() -> Vec<Arc<ScalarUDF>> {
    let images = image::image_functions().into_iter().filter(|f| is_random(f.name()));
    let own = random::random_functions().into_iter().chain(random::step_values());
    pure_functions().into_iter().chain(images.chain(own).map(Arc::new)).collect()
}

/// Whether calls of this function get the hidden last argument: a `UInt64` column of draws. Names are lower case.
pub fn is_random(name: &str) -> bool {
    random::RANDOM_FUNCTIONS.contains(&name) || image::RANDOM_IMAGE_FUNCTIONS.contains(&name)
}
