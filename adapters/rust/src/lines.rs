//! Cuts output into lines.

/// The longest line, in bytes; what is longer is cut.
pub const MAX_LINE: usize = 16 << 20;

/// Cuts a stream of bytes into lines, however it comes in pieces.
#[derive(Default)]
pub struct Splitter {
    pending: Vec<u8>,
    cut: u64,
}

/// A line without its newline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    pub data: Vec<u8>,
    /// Bytes that were cut from its end.
    pub cut: u64,
}

impl Splitter {
    /// Takes the next bytes, and returns the lines that they complete.
    pub fn feed(&mut self, mut data: &[u8]) -> Vec<Piece> {
        let mut lines = Vec::new();
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            self.extend(&data[..end]);
            data = &data[end + 1..];
            let mut line = self.take();
            if line.data.last() == Some(&b'\r') {
                line.data.pop();
            }
            lines.push(line);
        }
        self.extend(data);
        lines
    }

    /// Returns what came after the last newline.
    pub fn finish(&mut self) -> Option<Piece> {
        let rest = self.take();
        (rest != Piece::default()).then_some(rest)
    }

    fn extend(&mut self, part: &[u8]) {
        let room = (MAX_LINE - self.pending.len()).min(part.len());
        self.pending.extend_from_slice(&part[..room]);
        self.cut += (part.len() - room) as u64;
    }

    fn take(&mut self) -> Piece {
        Piece { data: std::mem::take(&mut self.pending), cut: std::mem::take(&mut self.cut) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(pieces: &[Vec<u8>]) -> (Vec<Piece>, Option<Piece>) {
        let mut splitter = Splitter::default();
        let lines = pieces.iter().flat_map(|piece| splitter.feed(piece)).collect();
        (lines, splitter.finish())
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_output_is_cut(pieces: Vec<Vec<u8>>) {
            prop_assert_eq!(split(&pieces), split(&[pieces.concat()]));
        }

        #[test]
        fn no_byte_is_lost(data in "[a\\n]{0,40}") {
            let (lines, rest) = split(&[data.clone().into_bytes()]);
            let mut joined: Vec<u8> = lines.iter().flat_map(|line| [&line.data[..], b"\n"].concat()).collect();
            joined.extend(rest.unwrap_or_default().data);
            prop_assert_eq!(joined, data.into_bytes());
        }
    }

    #[test]
    fn a_carriage_return_before_a_newline_is_no_part_of_the_line() {
        let (lines, rest) = split(&[b"a\r\nb\rc\r".to_vec()]);
        assert_eq!(lines[0].data, b"a");
        assert_eq!(rest.unwrap_or_default().data, b"b\rc\r");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        let (lines, _) = split(&[vec![b'x'; MAX_LINE], b"yz\n".to_vec()]);
        assert_eq!((lines[0].data.len(), lines[0].cut), (MAX_LINE, 2));
    }
}
