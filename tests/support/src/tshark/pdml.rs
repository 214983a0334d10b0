//! Wireshark's packet tree as XML (PDML), in the form that tshark writes: one element per line, values in
//! attributes.

use super::number;

/// `packet`, `proto` or `field` with its nested elements.
#[derive(Debug, Default)]
pub(super) struct Element {
    pub(super) name: String,
    /// Value in the form of Wireshark's filters.
    show: String,
    /// Line in the form of Wireshark's packet details.
    pub(super) showname: String,
    /// Whole octets of the wire, hexadecimal.
    wire: String,
    pub(super) children: Vec<Element>,
}

impl Element {
    /// First element with this name, depth first.
    pub(super) fn find(&self, name: &str) -> Option<&Self> {
        self.children
            .iter()
            .find_map(|child| if child.name == name { Some(child) } else { child.find(name) })
    }

    pub(super) fn maybe_number<T: TryFrom<u64>>(&self, name: &str) -> Option<T> {
        number(&self.find(name)?.show).and_then(|number| T::try_from(number).ok())
    }

    pub(super) fn number<T: TryFrom<u64>>(&self, name: &str) -> T {
        self.maybe_number(name).unwrap_or_else(|| panic!("no number {name} in {self:#?}"))
    }

    pub(super) fn bit(&self, name: &str) -> bool {
        self.number::<u8>(name) != 0
    }

    pub(super) fn octets(&self) -> Vec<u8> {
        let digit = |at: u8| (at as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let pairs = self.wire.as_bytes().chunks_exact(2);
        pairs.filter_map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
    }

    /// Parses the inside of a tag, `field name="…" show="…" …`.
    fn from_tag(tag: &str) -> Self {
        let mut element = Self::default();
        let mut rest = tag;
        while let Some((before, after)) = rest.split_once("=\"") {
            let Some((value, next)) = after.split_once('"') else { break };
            let value = unescape(value);
            match before.split_whitespace().last() {
                Some("name") => element.name = value,
                Some("show") => element.show = value,
                Some("showname") => element.showname = value,
                Some("unmaskedvalue") => element.wire = value,
                Some("value") if element.wire.is_empty() => element.wire = value,
                _ => {}
            }
            rest = next;
        }
        element
    }
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

/// Packets of a document, each with its protocols as children.
pub(super) fn packets(document: &str) -> Vec<Element> {
    let mut packets = Vec::new();
    let mut open: Vec<Element> = Vec::new();
    for line in document.lines().map(str::trim) {
        let Some(tag) = line.strip_prefix('<').and_then(|line| line.strip_suffix('>')) else {
            continue;
        };
        if tag == "packet" {
            open = vec![Element::default()];
        } else if tag.starts_with("/packet") {
            packets.extend(open.pop());
        } else if tag.starts_with("/proto") || tag.starts_with("/field") {
            let closed = open.pop();
            if let (Some(parent), Some(closed)) = (open.last_mut(), closed) {
                parent.children.push(closed);
            }
        } else if tag.starts_with("proto ") || tag.starts_with("field ") {
            let element = Element::from_tag(tag);
            if !tag.ends_with('/') {
                open.push(element);
            } else if let Some(parent) = open.last_mut() {
                parent.children.push(element);
            }
        }
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_attributes_and_escapes_are_parsed() {
        let document = "<?xml version=\"1.0\"?>\n<pdml>\n<packet>\n  <proto name=\"p\" show=\"\">\n    \
                        <field name=\"a\" showname=\"A &lt;1&gt; = &quot;x&quot;\" show=\"0x1f\" \
                        value=\"f\" unmaskedvalue=\"9f\">\n      <field name=\"b\" show=\"7\"/>\n    \
                        </field>\n  </proto>\n</packet>\n</pdml>\n";
        let packets = packets(document);
        assert_eq!(packets.len(), 1);
        let a = packets[0].find("a").unwrap();
        assert_eq!(a.showname, "A <1> = \"x\"");
        assert_eq!(a.octets(), [0x9f]);
        assert_eq!(packets[0].number::<u8>("a"), 0x1f);
        assert_eq!(a.number::<u32>("b"), 7);
        assert_eq!(packets[0].maybe_number::<u8>("absent"), None);
    }
}
