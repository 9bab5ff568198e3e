//! The nearest known name of a mistyped one. Every "unknown key, flag, option, dataset" message goes through here.

/// The known name that is nearest to `word` by edit distance; `None` only when nothing is known. Ties go to the first.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(word);
    known.into_iter().min_by_key(|name| distance(&folded, &fold(name)))
}

/// The nearest known name if it is near enough that a typing mistake is likely.
pub fn likely<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(word);
    nearest(word, known).filter(|name| {
        let name = fold(name);
        let length = folded.chars().count().max(name.chars().count());
        distance(&folded, &name) <= (length / 3).max(1) || (folded.len() >= 3 && (name.starts_with(&folded) || folded.starts_with(&name)))
    })
}

/// The remedy for an unknown name: the nearest known one, and all of them where they are few.
pub fn remedy<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let known: Vec<&str> = known.into_iter().collect();
    if let Some(name) = likely(word, known.iter().copied()) {
        return Some(format!("did you mean `{name}`?"));
    }
    let name = nearest(word, known.iter().copied())?;
    Some(if known.len() <= 12 { format!("known are {}", list(&known)) } else { format!("the nearest known one is `{name}`") })
}

/// `` `a`, `b` and `c` ``
pub fn list(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        [one] => format!("`{one}`"),
        [head @ .., last] => format!("{} and `{last}`", head.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")),
    }
}

fn fold(word: &str) -> String {
    word.to_lowercase().replace('-', "_")
}

fn distance(a: &str, b: &str) -> usize {
    // An unknown name may be a megabyte of rubbish; the distance is quadratic.
    const LONGEST: usize = 128;
    let cut = |s: &str| s.chars().take(LONGEST).collect::<String>();
    strsim::osa_distance(&cut(a), &cut(b)) + a.len().saturating_sub(LONGEST)
}

#[cfg(test)]
#[path = "suggest_tests.rs"]
mod tests;
