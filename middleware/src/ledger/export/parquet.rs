//! Rows as a Parquet file. A row group is written whenever so many values wait.

use super::Row;
use parquet::{
    basic::Compression,
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::parser::parse_message_type,
};
use std::{io::Write, sync::Arc};

/// The columns, in the order of [`Columns::flush`].
const SCHEMA: &str = "message rollouts {
    required binary rollout (STRING);
    required int64 plan (INTEGER(64, false));
    required int32 index (INTEGER(32, false));
    optional int32 group (INTEGER(32, false));
    optional group prompt (LIST) { repeated group list { required int32 element (INTEGER(32, false)); } }
    optional double temperature;
    optional int32 top_k (INTEGER(32, false));
    optional double top_p;
    optional double min_p;
    optional int64 seed (INTEGER(64, false));
    required group tokens (LIST) { repeated group list { required int32 element (INTEGER(32, false)); } }
    required group log_q (LIST) { repeated group list { required float element; } }
    required group support_sizes (LIST) { repeated group list { required int32 element (INTEGER(32, false)); } }
    required group support_ids (LIST) { repeated group list { required int32 element (INTEGER(32, false)); } }
    required group support_log_q (LIST) { repeated group list { optional float element; } }
    required group log_rest (LIST) { repeated group list { optional float element; } }
    required group vocabulary (LIST) { repeated group list { optional int32 element (INTEGER(32, false)); } }
    required group segment_tokens (LIST) { repeated group list { required int32 element (INTEGER(32, false)); } }
    required group segment_versions (LIST) { repeated group list { optional binary element (STRING); } }
    required group segment_kv (LIST) { repeated group list { required binary element (STRING); } }
    required group segment_engines (LIST) { repeated group list { required binary element (STRING); } }
    optional binary finish (STRING);
    optional double reward;
    required boolean consumed;
}";

/// Values, about, of a row group; at four to eight bytes each.
const VALUES: usize = 4 << 20;

/// A Parquet file being written.
pub(super) struct Table<W: Write + Send> {
    file: SerializedFileWriter<W>,
    waiting: Columns,
    values: usize,
}

impl<W: Write + Send> Table<W> {
    pub(super) fn create(out: W) -> Result<Self, ParquetError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let file = SerializedFileWriter::new(out, schema, Arc::new(properties))?;
        Ok(Self { file, waiting: Columns::default(), values: 0 })
    }

    pub(super) fn push(&mut self, row: &Row) -> Result<(), ParquetError> {
        self.waiting.push(row);
        self.values += 32 + 5 * row.tokens.len() + 2 * row.support_ids.len();
        if self.values >= VALUES { self.flush() } else { Ok(()) }
    }

    pub(super) fn finish(mut self) -> Result<(), ParquetError> {
        if self.values > 0 {
            self.flush()?;
        }
        self.file.close()?;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        std::mem::take(&mut self.waiting).flush(&mut group)?;
        group.close()?;
        self.values = 0;
        Ok(())
    }
}

/// Values with their levels: what is there, and where a row begins.
struct Column<T: DataType> {
    values: Vec<T::T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl<T: DataType> Default for Column<T> {
    fn default() -> Self {
        Self { values: vec![], definition: vec![], repetition: vec![] }
    }
}

impl<T: DataType> Column<T> {
    fn required(&mut self, value: T::T) {
        self.values.push(value);
    }

    fn optional(&mut self, value: Option<T::T>) {
        self.definition.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    /// A list whose elements are there; an empty one has definition level `empty`.
    fn list(&mut self, elements: impl Iterator<Item = T::T>, empty: i16) {
        self.elements(elements.map(Some), empty);
    }

    /// A list of elements of which some may be missing.
    fn sparse(&mut self, elements: impl Iterator<Item = Option<T::T>>) {
        let before = self.definition.len();
        for element in elements {
            self.repetition.push(i16::from(self.definition.len() > before));
            self.definition.push(1 + i16::from(element.is_some()));
            self.values.extend(element);
        }
        self.close(before, 0);
    }

    fn elements(&mut self, elements: impl Iterator<Item = Option<T::T>>, empty: i16) {
        let before = self.definition.len();
        for element in elements {
            self.repetition.push(i16::from(self.definition.len() > before));
            self.definition.push(empty + 1);
            self.values.extend(element);
        }
        self.close(before, empty);
    }

    fn close(&mut self, before: usize, empty: i16) {
        if self.definition.len() == before {
            self.repetition.push(0);
            self.definition.push(empty);
        }
    }

    /// A list that is not there.
    fn no_list(&mut self) {
        self.repetition.push(0);
        self.definition.push(0);
    }

    fn flush<W: Write + Send>(self, group: &mut SerializedRowGroupWriter<'_, W>) -> Result<(), ParquetError> {
        let missing = || ParquetError::General("the schema has fewer columns than the table".into());
        let mut column = group.next_column()?.ok_or_else(missing)?;
        let levels = |levels: &Vec<i16>| (!levels.is_empty()).then(|| levels.clone());
        let (definition, repetition) = (levels(&self.definition), levels(&self.repetition));
        column.typed::<T>().write_batch(&self.values, definition.as_deref(), repetition.as_deref())?;
        column.close()
    }
}

/// What waits for the next row group.
#[derive(Default)]
struct Columns {
    rollout: Column<ByteArrayType>,
    plan: Column<Int64Type>,
    index: Column<Int32Type>,
    group: Column<Int32Type>,
    prompt: Column<Int32Type>,
    temperature: Column<DoubleType>,
    top_k: Column<Int32Type>,
    top_p: Column<DoubleType>,
    min_p: Column<DoubleType>,
    seed: Column<Int64Type>,
    tokens: Column<Int32Type>,
    log_q: Column<FloatType>,
    support_sizes: Column<Int32Type>,
    support_ids: Column<Int32Type>,
    support_log_q: Column<FloatType>,
    log_rest: Column<FloatType>,
    vocabulary: Column<Int32Type>,
    segment_tokens: Column<Int32Type>,
    segment_versions: Column<ByteArrayType>,
    segment_kv: Column<ByteArrayType>,
    segment_engines: Column<ByteArrayType>,
    finish: Column<ByteArrayType>,
    reward: Column<DoubleType>,
    consumed: Column<BoolType>,
}

fn signed(values: &[u32]) -> impl Iterator<Item = i32> + '_ {
    values.iter().map(|&value| value as i32)
}

fn text(text: &str) -> ByteArray {
    ByteArray::from(text)
}

impl Columns {
    fn push(&mut self, row: &Row) {
        self.asked(row);
        self.tokens.list(signed(&row.tokens), 0);
        self.log_q.list(row.log_q.iter().copied(), 0);
        self.support_sizes.list(signed(&row.support_sizes), 0);
        self.support_ids.list(signed(&row.support_ids), 0);
        self.support_log_q.sparse(row.support_log_q.iter().copied());
        self.log_rest.sparse(row.log_rest.iter().copied());
        self.vocabulary.sparse(row.vocabulary.iter().map(|size| size.map(|size| size as i32)));
        self.segment_tokens.list(signed(&row.segment_tokens), 0);
        self.segment_versions.sparse(row.segment_versions.iter().map(|version| version.as_deref().map(text)));
        self.segment_kv.list(row.segment_kv.iter().map(|kv| text(kv)), 0);
        self.segment_engines.list(row.segment_engines.iter().map(|engine| text(engine)), 0);
        self.finish.optional(row.finish.map(text));
        self.reward.optional(row.reward);
        self.consumed.required(row.consumed);
    }

    fn asked(&mut self, row: &Row) {
        self.rollout.required(text(&row.rollout));
        self.plan.required(row.plan as i64);
        self.index.required(row.index as i32);
        self.group.optional(row.group.map(|group| group as i32));
        match &row.prompt {
            Some(prompt) => self.prompt.list(signed(prompt), 1),
            None => self.prompt.no_list(),
        }
        self.temperature.optional(row.temperature);
        self.top_k.optional(row.top_k.map(|top_k| top_k as i32));
        self.top_p.optional(row.top_p);
        self.min_p.optional(row.min_p);
        self.seed.optional(row.seed.map(|seed| seed as i64));
    }

    fn flush<W: Write + Send>(self, group: &mut SerializedRowGroupWriter<'_, W>) -> Result<(), ParquetError> {
        self.rollout.flush(group)?;
        self.plan.flush(group)?;
        self.index.flush(group)?;
        self.group.flush(group)?;
        self.prompt.flush(group)?;
        self.temperature.flush(group)?;
        self.top_k.flush(group)?;
        self.top_p.flush(group)?;
        self.min_p.flush(group)?;
        self.seed.flush(group)?;
        self.tokens.flush(group)?;
        self.log_q.flush(group)?;
        self.support_sizes.flush(group)?;
        self.support_ids.flush(group)?;
        self.support_log_q.flush(group)?;
        self.log_rest.flush(group)?;
        self.vocabulary.flush(group)?;
        self.segment_tokens.flush(group)?;
        self.segment_versions.flush(group)?;
        self.segment_kv.flush(group)?;
        self.segment_engines.flush(group)?;
        self.finish.flush(group)?;
        self.reward.flush(group)?;
        self.consumed.flush(group)
    }
}
