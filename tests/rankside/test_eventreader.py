"""The event file reader: what it reads, from whom, and what it says of damage."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorboardX
from event_views import in_tensorboard, only_file, points, raw_events
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter as TensorBoardWriter
from tensorboard.util.tensor_util import make_tensor_proto

from rankside import summary
from rankside.eventfile import EventFileWriter
from rankside.eventreader import event_files, read_reports, read_scalars
from rankside.record import EventFileError, RecordReader, footer, header
from rankside.tags import Tag

LOSS = (Tag("loss"),)


def write_three(folder: Path) -> Path:
    writer = EventFileWriter(folder)
    for step in range(3):
        writer.write_scalars(step, LOSS, [step / 2])
    writer.close()
    return only_file(folder)


def record_ends(path: Path) -> list[int]:
    lengths = [len(record) for record in RecordReader(path)]
    return list(itertools.accumulate(length + 16 for length in lengths))


def test_a_file_cut_anywhere_in_its_last_record_reads_up_to_it(tmp_path):
    path = write_three(tmp_path)
    whole = path.read_bytes()
    *_, before, end = record_ends(path)
    assert end == len(whole)
    for cut in range(before, end):
        path.write_bytes(whole[:cut])
        reader = RecordReader(path)
        assert len(list(reader)) == 3
        assert reader.offset == before
        assert [report.step for report in read_reports(tmp_path)] == [0, 1]


def test_reading_goes_on_where_a_growing_file_ended(tmp_path):
    path = write_three(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    reader = RecordReader(path)
    first = list(reader)
    path.write_bytes(whole)
    assert len(first) == 3
    assert first + list(reader) == list(RecordReader(path))


def test_a_damaged_byte_is_reported_with_file_and_offset_after_what_precedes_it(tmp_path):
    path = write_three(tmp_path)
    whole = path.read_bytes()
    begin, end = record_ends(path)[1:3]
    for position in range(begin, end):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        steps = []
        with pytest.raises(EventFileError, match=f"{path.name}: .* offset {begin}$") as raised:
            steps.extend(report.step for report in read_reports(tmp_path))
        assert str(tmp_path) in str(raised.value)
        errors = []
        seen = [report.step for report in read_reports(tmp_path, on_damage=errors.append)]
        assert seen == [0]
        assert len(errors) == 1
        assert points(read_scalars(tmp_path, on_damage=errors.append)["loss"]) == [(0, 0.0)]


@pytest.mark.parametrize(
    "event", [b"\xff", b"\x2a\x05\x0a", b"\x2a\x02\x0a\x05", b"\x0b", b"\x2a\x04\x0a\x02\x0a\x07"]
)
def test_a_record_that_is_no_event_is_reported_with_its_offset(tmp_path, event):
    path = write_three(tmp_path)
    before = path.read_bytes()
    path.write_bytes(before + header(len(event)) + event + footer(event) + before)
    errors = []
    assert [report.step for report in read_reports(tmp_path, on_damage=errors.append)] == [0, 1, 2]
    assert f"offset {len(before)}" in str(errors[0])


def test_a_session_start_drops_what_tensorboard_drops(tmp_path):
    tags = (Tag("a"), Tag("b"))
    writer = EventFileWriter(tmp_path)
    for step in range(10):
        writer.write_scalars(step, tags, [step, -step])
    writer.close()
    writer = EventFileWriter(tmp_path)
    writer.write_session_start(4)
    writer.write_scalars(4, tags[:1], [44.0])
    writer.close()
    assert raw_events(event_files(tmp_path)[1])[1].session_log.status == SessionLog.START
    series = read_scalars(tmp_path)
    accumulator = in_tensorboard(tmp_path)
    for tag in ("a", "b"):
        assert points(series[tag]) == [(scalar.step, scalar.value) for scalar in accumulator.Scalars(tag)]
    assert points(series["b"]) == [(0, 0.0), (1, -1.0), (2, -2.0), (3, -3.0)]
    reports = list(read_reports(tmp_path))
    assert [report.step for report in reports] == [*range(10), 4, 4, 4]
    assert [report.session_start for report in reports] == [False] * 10 + [True, True, False]
    assert reports[10].tags == ()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["start", "a", "b", "ab"]), st.integers(0, 8), st.floats(0, 1, width=32)),
        max_size=30,
    )
)
def test_scalars_are_those_that_no_later_point_or_session_start_made_void(events):
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        writer = EventFileWriter(Path(folder))
        for what, step, value in events:
            if what == "start":
                writer.write_session_start(step)
                expected = {tag: [p for p in of_tag if p[0] < step] for tag, of_tag in expected.items()}
                continue
            writer.write_scalars(step, tuple(Tag(name) for name in what), [value] * len(what))
            for name in what:
                kept = [p for p in expected.get(name, []) if p[0] < step]
                expected[name] = [*kept, (step, value)]
        writer.close()
        assert {tag: points(series) for tag, series in read_scalars(Path(folder)).items()} == expected


def test_files_of_tensorboardx_are_read(tmp_path):
    writer = tensorboardX.SummaryWriter(str(tmp_path))
    for step in range(50):
        writer.add_scalar("loss", step / 4, step)
        writer.add_scalar("lr", step / 8, step, display_name="rate", summary_description="the rate")
        writer.add_histogram("weights", np.arange(10.0), step)
        writer.add_text("note", f"step {step}", step)
    writer.close()
    series = read_scalars(tmp_path)
    assert points(series["loss"]) == [(step, step / 4) for step in range(50)]
    assert points(series["lr"]) == [(step, step / 8) for step in range(50)]
    assert set(series) == {"loss", "lr"}


def test_files_of_tensorboards_own_writer_are_read(tmp_path):
    writer = TensorBoardWriter(str(tmp_path))
    for step in range(0, 1000, 7):
        values = [Summary.Value(tag=tag, simple_value=step) for tag in ("a", "b")]
        writer.add_event(Event(step=step, wall_time=step, summary=Summary(value=values)))
    writer.add_event(Event(step=1000, summary=Summary(value=[Summary.Value(tag="a", simple_value=0.0)])))
    writer.close()
    series = read_scalars(tmp_path)
    assert points(series["a"]) == [*((step, step) for step in range(0, 1000, 7)), (1000, 0.0)]
    assert points(series["b"]) == [(step, step) for step in range(0, 1000, 7)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("in_content", [False, True])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_tensor_scalars_are_read_in_full_precision(tmp_path, dtype, in_content, shape):
    numbers = np.array([0.1, 0.0, -3.5, np.inf, np.nan], dtype)
    writer = TensorBoardWriter(str(tmp_path))
    for step, number in enumerate(numbers):
        tensor = make_tensor_proto(number.reshape(shape), dtype=dtype)
        if in_content:
            for name in ("half_val", "float_val", "double_val"):
                tensor.ClearField(name)
            tensor.tensor_content = number.tobytes()
        value = Summary.Value(tag="loss", tensor=tensor)
        if step == 0:
            value.metadata.plugin_data.plugin_name = "scalars"
        writer.add_event(Event(step=step, summary=Summary(value=[value])))
    writer.close()
    series = read_scalars(tmp_path)["loss"]
    assert series.steps.tolist() == list(range(5))
    np.testing.assert_array_equal(series.values, numbers.astype(np.float64))


def test_tensors_of_other_plugins_are_no_scalars(tmp_path):
    writer = EventFileWriter(tmp_path)
    writer.write_summary(1, [summary.tensor_value("t", 1.0, "mesh"), summary.scalar_value("s", 2.0)])
    bare = Summary.Value(tag="t", tensor=make_tensor_proto(3.0)).SerializeToString()
    writer.write_summary(2, [bare])
    writer.close()
    assert {tag: points(series) for tag, series in read_scalars(tmp_path).items()} == {"s": [(1, 2.0)]}


def test_many_different_summaries_of_equal_length_are_all_read(tmp_path):
    writer = EventFileWriter(tmp_path)
    for step in range(200):
        writer.write_summary(step, [summary.scalar_value("s", step), summary.text_value("t", f"{step:04d}")])
    writer.close()
    assert points(read_scalars(tmp_path)["s"]) == [(step, step) for step in range(200)]


def test_events_longer_than_a_piece_of_the_file_are_read(tmp_path):
    writer = EventFileWriter(tmp_path)
    writer.write_scalars(1, LOSS, [1.0])
    writer.write_event_bytes(Event(step=2, graph_def=bytes(20_000_000)).SerializeToString())
    writer.write_scalars(3, LOSS, [3.0])
    writer.close()
    assert writer.lost_events == 0
    assert points(read_scalars(tmp_path)["loss"]) == [(1, 1.0), (3, 3.0)]
