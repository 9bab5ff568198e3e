//! The SQL functions that Forebay adds: images, tensors, random draws.
//!
//! Owns: which functions exist where. Steps get all of them; queries get all but the random ones, which are functions of a row's key and of
//! the step they stand in. Must not know: sessions, plans.

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
