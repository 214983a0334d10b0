//! Seeds in documents and configurations: strings of decimal digits, because JavaScript and jq round numbers above
//! 2^53. A number is accepted too.

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// Form of a seed.
#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Number(u64),
    Text(String),
}

/// Serializes a seed, or the absence of one.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<T: Copy + Into<Option<u64>>, S: Serializer>(
    seed: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match (*seed).into() {
        Some(seed) => serializer.collect_str(&seed),
        None => serializer.serialize_none(),
    }
}

/// Deserializes a seed, or the absence of one.
///
/// # Errors
/// The value is no 64-bit number.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Option::<Form>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Form::Number(seed)) => Ok(Some(seed)),
        Some(Form::Text(text)) => {
            let seed = text.parse();
            seed.map(Some)
                .map_err(|_| D::Error::custom(format!("seed {text:?}: expected 0..=2^64-1")))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{NodeOptions, SocketsOptions};

    #[test]
    fn seed_is_a_string_and_accepted_as_a_number() {
        for seed in [0, (1 << 53) + 1, u64::MAX] {
            let node = NodeOptions { seed: Some(seed), ..NodeOptions::default() };
            let text = serde_json::to_string(&node).unwrap();
            assert!(text.contains(&format!("\"seed\":\"{seed}\"")), "{text}");
            assert_eq!(serde_json::from_str::<NodeOptions>(&text).unwrap(), node);
            let number = format!("{{\"seed\":{seed}}}");
            assert_eq!(serde_json::from_str::<NodeOptions>(&number).unwrap().seed, Some(seed));
        }
        assert_eq!(serde_json::from_str::<SocketsOptions>("{}").unwrap().seed, None);
        for wrong in ["\"\"", "\"-1\"", "-1", "\"x\"", "18446744073709551616"] {
            let options = format!("{{\"seed\":{wrong}}}");
            assert!(serde_json::from_str::<SocketsOptions>(&options).is_err(), "{wrong}");
        }
    }
}
