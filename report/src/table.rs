//! Text tables: a heading with units, numbers aligned to the right, "-" for unknown values.

use std::fmt;

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// A table. Columns are as wide as their widest cell, with two blanks between them.
#[derive(Clone, Debug)]
pub struct Table {
    head: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

/// Cell of an unknown value.
pub const UNKNOWN: &str = "-";

/// Returns the cell of a value, or [`UNKNOWN`].
pub fn cell(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| UNKNOWN.into(), |value| value.to_string())
}

impl Table {
    /// Creates an empty table. Column names include the unit.
    pub fn new(head: &[(&str, Align)]) -> Self {
        let head = head.iter().map(|&(name, align)| (name.to_owned(), align)).collect();
        Self { head, rows: Vec::new() }
    }

    /// Adds a row. Excess cells are dropped, missing cells are [`UNKNOWN`].
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().take(self.head.len()).collect();
        cells.resize(self.head.len(), UNKNOWN.into());
        self.rows.push(cells);
    }

    /// Removes the columns of which all cells are [`UNKNOWN`].
    #[must_use]
    pub fn without_unknown(mut self) -> Self {
        let is_known = |at: &usize| self.rows.iter().any(|row| row[*at] != UNKNOWN);
        let kept: Vec<usize> = (0..self.head.len()).filter(is_known).collect();
        self.head = kept.iter().map(|at| self.head[*at].clone()).collect();
        for row in &mut self.rows {
            *row = kept.iter().map(|at| row[*at].clone()).collect();
        }
        self
    }

    fn widths(&self) -> Vec<usize> {
        let width = |text: &str| text.chars().count();
        let column = |index: usize| {
            let rows = self.rows.iter().map(|row| width(&row[index]));
            rows.max().unwrap_or(0).max(width(&self.head[index].0))
        };
        (0..self.head.len()).map(column).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let line = |f: &mut fmt::Formatter<'_>, cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for (index, ((cell, &width), (_, align))) in
                cells.zip(&widths).zip(&self.head).enumerate()
            {
                if index > 0 {
                    text.push_str("  ");
                }
                match align {
                    Align::Left => text.push_str(&format!("{cell:<width$}")),
                    Align::Right => text.push_str(&format!("{cell:>width$}")),
                }
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(f, &mut self.head.iter().map(|(name, _)| name.as_str()))?;
        for row in &self.rows {
            line(f, &mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_aligned_and_names_left_aligned() {
        let mut table = Table::new(&[("operation", Align::Left), ("time µs", Align::Right)]);
        table.row(["Write".into(), "12345678".into()]);
        table.row(["Send/Receive".into(), cell(Some(7))]);
        table.row(["Read".into(), cell(None::<u32>)]);
        let expected = "\
operation      time µs
Write         12345678
Send/Receive         7
Read                 -
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn rows_fit_the_head() {
        let mut table = Table::new(&[("a", Align::Left), ("b", Align::Left)]);
        table.row(["1".into()]);
        table.row(["1".into(), "2".into(), "3".into()]);
        assert_eq!(table.to_string(), "a  b\n1  -\n1  2\n");
    }

    #[test]
    fn unknown_column_is_removed() {
        let mut table = Table::new(&[("a", Align::Left), ("b", Align::Left), ("c", Align::Left)]);
        table.row(["1".into(), UNKNOWN.into(), UNKNOWN.into()]);
        table.row(["2".into(), UNKNOWN.into(), "3".into()]);
        assert_eq!(table.without_unknown().to_string(), "a  c\n1  -\n2  3\n");
    }

    #[test]
    fn table_without_rows_has_its_head_only() {
        assert_eq!(Table::new(&[("a", Align::Right)]).to_string(), "a\n");
    }
}
