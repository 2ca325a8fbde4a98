"""The event file writer, against the reader and against what TensorBoard reads."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from event_views import in_tensorboard, only_file, points, raw_events
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator as PluginEventAccumulator,
)
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.util.tensor_util import make_ndarray

from rankside import summary, window
from rankside.eventfile import EventFileWriter
from rankside.eventreader import event_files, read_reports, read_scalars
from rankside.record import RecordReader
from rankside.tags import Tag, well_known

LOSS = (Tag("loss"),)
STEPS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(width=32)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=200), min_size=1, max_size=5, unique=True).flatmap(
        lambda names: st.tuples(
            st.just(names),
            st.lists(
                st.tuples(STEPS, st.lists(NUMBERS, min_size=len(names), max_size=len(names))), max_size=20
            ),
        )
    )
)
def test_whatever_is_written_is_read_back_bit_equal_as_float32(case):
    names, rows = case
    tags = tuple(Tag(name, unit="ms") for name in names)
    with tempfile.TemporaryDirectory() as folder:
        writer = EventFileWriter(Path(folder), wall_clock=lambda: 1234.5)
        for step, values in rows:
            writer.write_scalars(step, tags, values)
        writer.close()
        reports = list(read_reports(Path(folder)))
        events = raw_events(only_file(Path(folder)))[1:] if rows else []
    written = np.array([values for _, values in rows], np.float32).reshape(len(rows), len(names))
    assert (
        [report.step for report in reports] == [event.step for event in events] == [step for step, _ in rows]
    )
    for report, event, values in zip(reports, events, written, strict=True):
        assert report.tags == tuple(names)
        assert report.wall_time == 1234.5
        numbers = ~np.isnan(values)
        last = report.columns[window.Column.LAST].astype(np.float32)
        seen = np.array([value.simple_value for value in event.summary.value], np.float32)
        for read in (last, seen):
            np.testing.assert_array_equal(read.view(np.uint32)[numbers], values.view(np.uint32)[numbers])
            np.testing.assert_array_equal(np.isnan(read), ~numbers)
        np.testing.assert_array_equal(report.columns, window.single(values.astype(np.float64)))


def test_tensorboard_reads_what_was_written(tmp_path):
    tags = (Tag("loss"), Tag("größe/层"), Tag("x" * 300))
    rows = [(0, [0.1, np.nan, 1e-45]), (3, [np.inf, -0.0, 1e300]), (2**31 + 7, [-np.inf, 3.0, 2.5])]
    writer = EventFileWriter(tmp_path)
    for step, values in rows:
        writer.write_scalars(step, tags, values)
    writer.close()
    accumulator = in_tensorboard(tmp_path)
    assert set(accumulator.Tags()["scalars"]) == {tag.name for tag in tags}
    for i, tag in enumerate(tags):
        scalars = accumulator.Scalars(tag.name)
        assert [scalar.step for scalar in scalars] == [step for step, _ in rows]
        with np.errstate(over="ignore"):
            expected = np.array([values[i] for _, values in rows]).astype(np.float32)
        np.testing.assert_array_equal(np.array([scalar.value for scalar in scalars], np.float32), expected)


def test_values_and_tags_must_be_as_many(tmp_path):
    with pytest.raises(ValueError, match="2 tags, but 1 values"):
        EventFileWriter(tmp_path).write_scalars(7, (Tag("a"), Tag("b")), [1.0])


def test_description_and_unit_stand_at_the_first_value_of_each_file(tmp_path):
    writer = EventFileWriter(tmp_path, max_bytes=1)
    for step in range(3):
        writer.write_scalars(step, (well_known("data-time"), well_known("loss")), [1.0, 2.0])
        writer.write_scalars(step + 10, (well_known("loss"), well_known("data-time")), [1.0, 2.0])
        writer.flush()
    writer.close()
    files = event_files(tmp_path)
    assert len(files) == 3
    for path in files:
        version, first, second = raw_events(path)
        assert version.file_version == "brain.Event:2"
        metadata = first.summary.value[0].metadata
        assert metadata.summary_description == f"{well_known('data-time').description} (ms)"
        assert metadata.plugin_data.plugin_name == "scalars"
        assert not any(value.HasField("metadata") for value in second.summary.value)
    shown = PluginEventAccumulator(str(tmp_path)).Reload().SummaryMetadata("data-time")
    assert shown.summary_description.endswith("(ms)")


def test_a_new_file_follows_at_the_size_limit_and_nothing_is_lost(tmp_path):
    writer = EventFileWriter(tmp_path, max_bytes=2000, wall_clock=lambda: 1000.0)
    for step in range(300):
        writer.write_scalars(step, LOSS, [step])
        if step % 10 == 9:
            writer.flush()
    writer.close()
    files = event_files(tmp_path)
    assert [path.name.split(".")[3] for path in files] == [f"{1000 + i:010d}" for i in range(len(files))]
    assert len(files) > 4
    assert all(2000 <= path.stat().st_size < 2000 + 10 * 60 for path in files[:-1])
    assert [report.step for report in read_reports(tmp_path)] == list(range(300))
    assert [scalar.step for scalar in in_tensorboard(tmp_path).Scalars("loss")] == list(range(300))


def test_files_sort_by_start_and_incarnations_grow_although_the_clock_runs_backwards(tmp_path):
    incarnations = []
    for clock in (5000.9, 4000.0, 5001.0, 9000.0):
        writer = EventFileWriter(tmp_path, wall_clock=lambda clock=clock: clock)
        incarnations.append(writer.incarnation)
        writer.write_scalars(len(incarnations), LOSS, [clock])
        writer.close()
    assert incarnations == [5000, 5001, 5002, 9000]
    assert [report.step for report in read_reports(tmp_path)] == [1, 2, 3, 4]


def test_a_writer_creates_its_folder_at_once_and_its_file_when_there_is_something_to_write(tmp_path):
    folder = tmp_path / "run" / "rank_0"
    writer = EventFileWriter(folder)
    writer.flush()
    writer.close()
    assert list(folder.iterdir()) == []


def test_two_writers_that_picked_the_same_name_get_a_file_each(tmp_path):
    writers = [EventFileWriter(tmp_path, wall_clock=lambda: 77.0) for _ in range(2)]
    for i, writer in enumerate(writers):
        writer.write_scalars(i, LOSS, [i])
        writer.close()
    assert len(event_files(tmp_path)) == 2
    assert [report.step for report in read_reports(tmp_path)] == [0, 1]


def test_a_writer_knows_whether_its_folder_held_event_files_before(tmp_path):
    first = EventFileWriter(tmp_path)
    first.write_scalars(1, LOSS, [1.0])
    assert not first.continues
    first.close()
    assert EventFileWriter(tmp_path).continues


def test_a_given_wall_time_stands_in_the_event_instead_of_the_clocks(tmp_path):
    writer = EventFileWriter(tmp_path, wall_clock=lambda: 100.0)
    writer.write_scalars(1, LOSS, [1.0], wall_time=42.25)
    writer.write_window(2, LOSS, window.single(np.array([2.0])), wall_time=43.5)
    writer.write_scalars(3, LOSS, [3.0])
    writer.close()
    assert [report.wall_time for report in read_reports(tmp_path)] == [42.25, 43.5, 100.0]
    assert [scalar.wall_time for scalar in in_tensorboard(tmp_path).Scalars("loss")] == [42.25, 43.5, 100.0]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from rankside.eventfile import EventFileWriter
from rankside.eventreader import read_reports
from rankside.tags import Tag

folder = Path(sys.argv[1])
writer = EventFileWriter(folder, max_buffered_bytes=60_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
for step in range(500):
    writer.write_scalars(step, (Tag("loss"),), [step])
for _ in range(2):
    try:
        writer.flush()
    except OSError:
        pass
    else:
        sys.exit("the limit did not bite")
assert writer.failed_writes == 2 and writer.lost_events == 0
(path,) = folder.iterdir()
assert path.stat().st_size == 5000
assert [report.step for report in read_reports(folder)] == list(range(len(list(read_reports(folder)))))
if sys.argv[2] == "room":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.write_scalars(500, (Tag("loss"),), [500])
    writer.close()
elif sys.argv[2] == "more":
    for step in range(500, 5000):
        writer.write_scalars(step, (Tag("loss"),), [step])
    assert len(writer._buffer) <= 60_000
    lost = writer.lost_events
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.close()
    print(lost)
else:
    try:
        writer.close()
    except OSError:
        print(writer.lost_events)
"""


def run_limited(folder: Path, then: str) -> str:
    """Write 500 events to a file that the system lets grow to 5,000 bytes only."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder), then],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_record_that_the_disk_took_in_part_is_completed_when_there_is_room(tmp_path):
    run_limited(tmp_path, "room")
    assert [report.step for report in read_reports(tmp_path)] == list(range(501))
    assert len(in_tensorboard(tmp_path).Scalars("loss")) == 501


def test_while_the_disk_is_full_the_buffer_is_bounded_and_dropped_events_are_counted(tmp_path):
    lost = int(run_limited(tmp_path, "more"))
    steps = [report.step for report in read_reports(tmp_path)]
    assert lost > 0
    assert steps == list(range(5000 - lost))


def test_closing_on_a_full_disk_leaves_whole_records_and_counts_the_lost_events(tmp_path):
    lost = int(run_limited(tmp_path, "close"))
    steps = [report.step for report in read_reports(tmp_path)]
    assert steps == list(range(500 - lost))
    path = only_file(tmp_path)
    reader = RecordReader(path)
    list(reader)
    assert reader.offset == path.stat().st_size


def windows_of(rng: np.random.Generator, tags: int, steps: int) -> np.ndarray:
    values = rng.normal(size=(steps, tags))
    values[rng.random(values.shape) < 0.2] = np.nan
    columns = window.single(values[0])
    for row in values[1:]:
        columns = window.combine(columns, window.single(row))
    return columns


def test_windows_come_back_in_full_precision_and_show_mean_min_and_max(tmp_path):
    rng = np.random.default_rng(1)
    tags = (Tag("loss", unit="nat"), Tag("größe"))
    written = [windows_of(rng, 2, 5) for _ in range(20)]
    writer = EventFileWriter(tmp_path)
    for i, columns in enumerate(written):
        writer.write_window(i * 5, tags, columns)
    writer.close()
    reports = list(read_reports(tmp_path))
    assert [report.step for report in reports] == list(range(0, 100, 5))
    for report, columns in zip(reports, written, strict=True):
        assert report.tags == ("loss", "größe")
        np.testing.assert_array_equal(report.columns, columns)
    accumulator = in_tensorboard(tmp_path)
    for name, column in (("loss", "MEAN"), ("loss/min", "MIN"), ("loss/max", "MAX")):
        shown = np.array([scalar.value for scalar in accumulator.Scalars(name)], np.float32)
        expected = np.array([columns[window.Column[column], 0] for columns in written])
        np.testing.assert_array_equal(shown, expected.astype(np.float32))
        np.testing.assert_array_equal(read_scalars(tmp_path)[name].values, shown.astype(np.float64))
    shown = make_ndarray(accumulator.Tensors("crossrank/window")[3].tensor_proto)
    np.testing.assert_array_equal(shown, written[3])


def test_a_window_of_one_value_a_tag_is_written_as_plain_scalars(tmp_path):
    values = np.array([1.5, np.nan, np.inf, 0.25])
    columns = window.single(values)
    columns[:2, 3] = 0
    columns[2:, 3] = np.nan
    tags = tuple(Tag(name) for name in "abcd")
    writer = EventFileWriter(tmp_path)
    writer.write_window(1, tags, columns)
    writer.write_window(2, tags[3:], columns[:, 3:])
    writer.close()
    (report,) = read_reports(tmp_path)
    assert report.tags == ("a", "b", "c")
    np.testing.assert_array_equal(report.columns, columns[:, :3])
    assert set(in_tensorboard(tmp_path).Tags()["scalars"]) == {"a", "b", "c"}


def test_a_window_without_a_finite_value_shows_the_last_one(tmp_path):
    columns = window.combine(window.single(np.array([np.nan])), window.single(np.array([-np.inf])))
    writer = EventFileWriter(tmp_path)
    writer.write_window(2, LOSS, columns)
    writer.close()
    assert points(read_scalars(tmp_path)["loss"]) == [(2, -np.inf)]
    (report,) = read_reports(tmp_path)
    np.testing.assert_array_equal(report.columns, columns)


def test_tensorboard_understands_text_histograms_and_tensors(tmp_path):
    writer = EventFileWriter(tmp_path)
    values = [
        summary.text_value("note", "**größe**", description="notes"),
        summary.histogram_value("h", [0.0, 1.0, 3.0], [5, 7], description="weights"),
        summary.tensor_value("t", np.arange(6).reshape(2, 3), "mine", content=b"\x00\xff"),
    ]
    writer.write_summary(3, values)
    writer.close()
    accumulator = PluginEventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()
    arrays = {tag: make_ndarray(accumulator.Tensors(tag)[0].tensor_proto) for tag in ("note", "h", "t")}
    assert arrays["note"].item().decode() == "**größe**"
    np.testing.assert_array_equal(arrays["h"], [[0, 1, 5], [1, 3, 7]])
    np.testing.assert_array_equal(arrays["t"], [[0, 1, 2], [3, 4, 5]])
    plugins = {tag: accumulator.SummaryMetadata(tag).plugin_data for tag in arrays}
    assert {tag: plugin.plugin_name for tag, plugin in plugins.items()} == {
        "note": "text",
        "h": "histograms",
        "t": "mine",
    }
    assert plugins["t"].content == b"\x00\xff"
    assert accumulator.SummaryMetadata("h").summary_description == "weights"


def test_a_histogram_needs_one_edge_more_than_counts():
    with pytest.raises(ValueError, match="one edge more"):
        summary.histogram_value("h", [0.0, 1.0], [5, 7])


def test_a_serialized_event_is_written_as_it_is(tmp_path):
    event = Event(wall_time=1.0, step=4, graph_def=b"graph")
    writer = EventFileWriter(tmp_path)
    writer.write_event_bytes(event.SerializeToString())
    writer.close()
    assert raw_events(only_file(tmp_path))[1] == event
    assert list(read_reports(tmp_path)) == []


def test_writing_needs_no_protobuf_and_no_tensorboard():
    code = (
        "import sys, rankside.eventfile, rankside.eventreader, rankside.summary;"
        "sys.exit(bool({'tensorboard', 'google.protobuf'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
