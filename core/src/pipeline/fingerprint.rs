//! The fingerprint: equal ones mean equal stored rows, so that an unchanged pipeline isn't run again.

use crate::source::SourceSnapshot;

/// Hash, as hex, of the canonical spec, the code of the Python modules (name, text) in any order, and the source's files (relative
/// path, size, etag or time of change). The source's base is not in it: a moved tree is the same source. Of a query it is the versions that
/// it reads, and not the file that its answer was staged in.
pub fn fingerprint(canonical: &str, code: &[(String, String)], snapshot: &SourceSnapshot) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"forebay fingerprint 1\0");
    put(&mut hasher, canonical);
    let mut code: Vec<&(String, String)> = code.iter().collect();
    code.sort();
    hasher.update(&(code.len() as u64).to_le_bytes());
    for (module, text) in code {
        put(&mut hasher, module);
        put(&mut hasher, text);
    }
    if let Some(query) = &snapshot.query {
        hasher.update(b"query\0");
        hasher.update(&(query.inputs.len() as u64).to_le_bytes());
        for input in &query.inputs {
            put(&mut hasher, input.dataset.as_str());
            hasher.update(&input.version.0.to_le_bytes());
            put(&mut hasher, &input.table);
        }
        return hasher.finalize().to_hex().to_string();
    }
    let mut files: Vec<_> = snapshot.files.iter().map(|f| (&f.path, f.size, &f.stamp)).collect();
    files.sort();
    hasher.update(&(files.len() as u64).to_le_bytes());
    for (path, size, stamp) in files {
        put(&mut hasher, path);
        hasher.update(&size.to_le_bytes());
        put(&mut hasher, stamp);
    }
    hasher.finalize().to_hex().to_string()
}

/// Length first, so that no two lists of texts are the same bytes.
fn put(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}
