"""What every backend must do. Each test runs on a local folder, in memory and on S3."""

from __future__ import annotations

import gc
import json
import logging
import threading
from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode  # the fake tensors that users have

from tests.store.conftest import Place
from tests.store.tensors import kinds, same
from torchsan.errors import StoreError
from torchsan.store import Store

pytestmark = [
    # Both come from making such tensors, whoever does it.
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]

LARGE = 50_000


def test_every_kind_of_tensor_comes_back_as_it_was(place: Place) -> None:
    tensors = kinds()
    with place.open() as store:
        store.put_many({name: t for name, t in tensors.items() if not name.startswith("large")})
        store.put("large", tensors["large"])
        store.put("large-view", tensors["large-view"])
    again = place.open()
    assert again.names() == sorted(tensors)
    for name, read in again.get_many(tensors).items():
        assert same(read, tensors[name]), name
        assert read.is_leaf, name


@pytest.mark.parametrize("wait", [True, False])
def test_a_store_may_hold_nothing_but_an_empty_tensor(place: Place, wait: bool) -> None:
    with place.open() as store:
        store.put("empty", torch.empty(0, 3), wait=wait)
    again = place.open()
    assert again.get("empty").shape == (0, 3)
    assert not again.fsck().problems


def test_a_tensor_is_described_without_its_data(store: Store) -> None:
    tensor = torch.randn(4, 6, dtype=torch.complex64, requires_grad=True)
    store.put("x", tensor[1:, ::2].conj().detach().requires_grad_())
    meta = store.describe("x")
    assert (meta.dtype, meta.shape, meta.stride, meta.offset) == ("complex64", (3, 3), (6, 2), 6)
    assert (meta.device, meta.requires_grad, meta.conj, meta.neg) == ("cpu", True, True, False)
    store.put("s", torch.eye(3).to_sparse())
    assert (store.describe("s").layout, store.describe("s").kind) == ("sparse_coo", "sparse")


def test_a_view_is_stored_without_its_base(place: Place, store: Store) -> None:
    store.put("x", torch.randn(1_000_000)[500:502])
    assert place.blob_bytes() < 100


@pytest.mark.parametrize("count", [100, LARGE])
def test_the_same_bytes_are_stored_once(place: Place, store: Store, count: int) -> None:
    tensor = torch.randn(count)
    store.put("a", tensor)
    before = place.blob_bytes()
    store.put("b", tensor.clone())
    store.put("c", tensor.view(torch.int32).reshape(4, -1))
    place.open().put("d", tensor.view(torch.uint8))
    store.put("e", tensor.clone(), wait=False)
    store.flush()
    assert place.blob_bytes() == before
    assert same(store.get("c"), tensor.view(torch.int32).reshape(4, -1))


def test_tensors_that_share_a_storage_share_it_again(store: Store) -> None:
    base = torch.arange(40, dtype=torch.float32)
    store.put_many({"a": base[4:10], "b": base[8:], "c": base.view(torch.int16)[21:23], "d": base[3:3], "o": base + 1})
    for read in (store.get_many(["a", "b", "c", "o"]), store.get_many(["a", "b", "c", "o"], fresh=True)):
        pointers = {name: t.untyped_storage().data_ptr() for name, t in read.items()}
        assert pointers["a"] == pointers["b"] == pointers["c"] != pointers["o"]
        assert torch.equal(read["a"], base[4:10])
        assert torch.equal(read["c"], base.view(torch.int16)[21:23])
        read["a"][4] = -1
        assert read["b"][0] == -1
        del read
        gc.collect()


def test_reads_share_storages_that_are_in_use(store: Store) -> None:
    store.put("x", torch.randn(LARGE))
    first, second, other = store.get("x"), store.get("x"), store.get("x", fresh=True)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert first.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
    assert other.untyped_storage().data_ptr() != store.get("x", fresh=True).untyped_storage().data_ptr()


@pytest.mark.parametrize("count", [10, LARGE])
def test_writing_into_a_tensor_that_was_read_never_changes_the_store(place: Place, store: Store, count: int) -> None:
    tensor = torch.randn(count)
    store.put("x", tensor)
    store.get("x").zero_()
    gc.collect()
    assert torch.equal(store.get("x"), tensor)
    assert torch.equal(place.open().get("x"), tensor)
    assert store.fsck()


def test_the_last_put_wins_and_a_deleted_tensor_is_gone(place: Place, store: Store) -> None:
    other = place.open()
    for value in range(3):
        store.put("x", torch.full((2,), value))
        other.put("x", torch.full((2,), 10 + value))
    assert store.get("x")[0] == 12
    store.delete("x")
    with pytest.raises(StoreError, match="tensor-not-found"):
        other.get("x")
    with pytest.raises(StoreError, match="tensor-not-found"):
        store.delete("x")
    other.put("x", torch.ones(1))
    assert store.names() == ["x"]


def test_a_later_put_wins_whatever_the_clocks_say(store: Store, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("x", torch.zeros(1))
    monkeypatch.setattr("torchsan.store.committing.time.time_ns", lambda: 1)
    place.open().put("x", torch.ones(1))
    assert store.get("x") == 1


def test_names_are_listed_by_prefix(store: Store) -> None:
    store.put_many({name: torch.ones(1) for name in ("b/x", "a/y", "a/x", "CON", "con", "trailing. ", "ünïcode/名")})
    assert store.names() == sorted(["b/x", "a/y", "a/x", "CON", "con", "trailing. ", "ünïcode/名"])
    assert store.names("a/") == ["a/x", "a/y"]
    assert "a/x" in store
    assert "a/z" not in store


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../x",
        "a/../b",
        "a\\..\\b",
        "/etc/x",
        "\\x",
        "./a",
        "a\nb",
        "a\x00b",
        "\x1b[2J",
        "x" * 10_000,
        "\ud800",
        "a\u2028b",
    ],
)
def test_a_bad_name_is_refused_and_nothing_is_written(place: Place, name: str) -> None:
    with pytest.raises(StoreError, match="bad-name"):
        place.open().put(name, torch.ones(1))
    with pytest.raises(StoreError, match="bad-name"):
        place.open().get(name)
    assert not place.files()


def test_a_missing_tensor_names_the_nearest_ones(store: Store) -> None:
    with pytest.raises(StoreError, match=r"no tensor 'x' in .*nothing has a similar name"):
        store.get("x")
    store.put_many({"layer1/weight": torch.ones(1), "layer1/bias": torch.ones(1)})
    with pytest.raises(StoreError, match=r"no tensor 'layer1/wieght' in .*'layer1/weight'"):
        store.get("layer1/wieght")


def test_tensors_without_data_are_refused(store: Store) -> None:
    with FakeTensorMode():
        fake = torch.ones(3)
    resized = torch.ones(3)
    resized.untyped_storage().resize_(0)
    for tensor, what in ((torch.ones(3, device="meta"), "meta"), (fake, "fake"), (resized, "resized")):
        with pytest.raises(StoreError, match=rf"{what}.*no-data"):
            store.put("x", tensor)


def test_tensors_that_the_store_cannot_keep_are_refused(store: Store) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for tensor in (quantized, nested, jagged, torch.ones(2).to_mkldnn()):
        with pytest.raises(StoreError, match="unsupported-tensor"):
            store.put("x", tensor)
    with pytest.raises(StoreError, match="not-a-tensor"):
        store.put("x", [1.0])  # type: ignore[arg-type]  # the mistake is the point
    assert store.names() == []


def test_tensors_inside_a_transform_are_refused(store: Store) -> None:
    def put(x: torch.Tensor) -> torch.Tensor:
        store.put("x", x)
        return x

    with pytest.raises(StoreError, match="no-data"):
        torch.func.vmap(put)(torch.ones(3))


@pytest.mark.parametrize("count", [100, LARGE])
@pytest.mark.parametrize(
    "change", [lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[:-8]], ids=["corrupt", "truncated"]
)
def test_damage_is_found_when_read_and_mended_by_a_put(
    place: Place, count: int, change: Callable[[bytes], bytes]
) -> None:
    tensor = torch.randn(count)
    place.open().put("x", tensor)
    place.damage(place.open().record("x").blobs[0], change)
    assert not place.open().fsck()
    for _ in range(2):
        with pytest.raises(StoreError, match="corrupt-blob"):
            place.open().get("x")
    place.open().put("x", tensor)
    assert torch.equal(place.open().get("x"), tensor)
    assert place.open().fsck()


def test_altered_data_can_be_read_unverified(place: Place) -> None:
    place.open().put("x", torch.zeros(100))
    place.damage(place.open().record("x").blobs[0], lambda b: b"\x01" + b[1:])
    assert place.open().get("x", verify=False).view(torch.uint8)[0] == 1


def test_a_store_of_a_newer_format_is_refused(place: Place) -> None:
    place.open().put("x", torch.ones(1))
    place.write("torchsan-store.json", json.dumps({"format": 2}).encode())
    uses: list[Callable[[Store], object]] = [
        lambda s: s.get("x"),
        lambda s: s.put("x", torch.ones(1)),
        lambda s: s.gc(),
        lambda s: s.fsck(),
    ]
    for use in uses:
        with pytest.raises(StoreError, match=r"format 2.*newer-format"):
            use(place.open())


@pytest.mark.parametrize("manifest", [b"", b"{", b"[]", b'{"format": "1"}', b'{"format": -1}', b"[" * 50_000])
def test_a_damaged_manifest_is_refused(place: Place, manifest: bytes) -> None:
    place.open().put("x", torch.ones(1))
    place.write("torchsan-store.json", manifest)
    with pytest.raises(StoreError, match="damaged-manifest"):
        place.open().get("x")


def test_a_place_with_other_files_does_not_become_a_store(place: Place) -> None:
    place.open().put("x", torch.ones(1))
    place.remove("torchsan-store.json")
    place.write("notes.txt", b"mine")
    with pytest.raises(StoreError, match="not-a-store"):
        place.open().put("x", torch.ones(1))


def test_puts_that_do_not_wait_are_there_after_flush_and_for_reads(place: Place, store: Store) -> None:
    tensor = torch.zeros(4)
    for value in range(20):
        store.put(f"t/{value}", tensor.fill_(value), wait=False)
    assert [int(store.get(f"t/{value}")[0]) for value in range(20)] == list(range(20))
    store.put("big", torch.ones(LARGE), wait=False)
    store.flush()
    assert len(place.open().names()) == 21


def test_a_put_that_waits_wins_over_one_that_was_queued_before(store: Store) -> None:
    for value in range(10):
        store.put("x", torch.tensor(value), wait=False)
    store.put("x", torch.tensor(99))
    assert store.get("x") == 99


def test_a_tensor_larger_than_the_queue_is_put_at_once(place: Place) -> None:
    with place.open(queue_bytes=1000) as store:
        store.put("x", torch.ones(LARGE), wait=False)
        assert "x" in place.open().names()


def test_a_collection_removes_what_no_name_refers_to(place: Place, store: Store) -> None:
    keep = {"small": torch.randn(100), "large": torch.randn(LARGE), "sparse": torch.eye(5).to_sparse()}
    store.put_many(keep)
    used = place.blob_bytes()
    store.put_many({"a": torch.randn(100), "b": torch.randn(LARGE), "small2": keep["small"].clone()})
    store.put("large", torch.randn(LARGE))
    store.put("large", keep["large"])
    for name in ("a", "b", "small2"):
        store.delete(name)
    report = store.gc()
    assert report.blobs == 2
    assert report.nbytes > 2 * 4 * LARGE
    assert place.blob_bytes() <= used + 64
    assert place.open().names() == sorted(keep)
    for name, tensor in place.open().get_many(keep).items():
        assert same(tensor, keep[name])
    store.put("later", torch.ones(3))
    assert store.fsck()
    assert store.fsck().notes == ()


def test_a_reader_goes_on_after_a_collection_in_another_process(place: Place) -> None:
    reader, writer = place.open(), place.open()
    tensors = {f"t{n}": torch.randn(10) for n in range(5)}
    writer.put_many(tensors)
    assert torch.equal(reader.get("t0"), tensors["t0"])
    writer.delete("t1")
    writer.gc()
    assert torch.equal(reader.get("t0", fresh=True), tensors["t0"])
    writer.put("t1", tensors["t1"])
    assert torch.equal(reader.get("t1"), tensors["t1"])


def test_a_damaged_record_makes_older_values_doubtful_and_can_be_given_up(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with place.open() as store:
        store.put("x", torch.zeros(1))
    with place.open() as store:
        store.put("x", torch.ones(1))
    with place.open() as store:
        store.put("y", torch.ones(1))
    log = sorted(key for key in place.files() if key.endswith(".log"))[1]
    data = place.read(log)
    place.write(log, data[:30] + b"#" + data[31:])
    with pytest.raises(StoreError, match="damaged-log"), caplog.at_level(logging.CRITICAL):
        place.open().get("x")
    assert place.open().get("x", verify=False) == 0
    assert not place.open().fsck()
    with pytest.raises(StoreError, match="damaged-log"):
        place.open().gc()
    place.open().gc(drop_damaged=True)
    assert place.open().get("x") == 0
    assert place.open().fsck()


def test_a_name_without_data_is_found_and_can_be_given_up(place: Place, store: Store) -> None:
    store.put_many({"x": torch.randn(LARGE), "y": torch.ones(1)})
    place.remove(f"blobs/{store.record('x').blobs[0].digest[:2]}/{store.record('x').blobs[0].digest}")
    with pytest.raises(StoreError, match=r"is missing.*corrupt-blob"):
        store.get("x")
    with pytest.raises(StoreError, match="corrupt-blob"):
        store.gc()
    assert store.gc(drop_damaged=True).dropped == ("x",)
    assert store.fsck()


def test_what_a_truncated_pack_held_can_be_given_up(place: Place, store: Store) -> None:
    store.put_many({"x": torch.ones(16), "y": torch.randn(64)})
    store.close()
    pack = next(key for key in place.files() if key.endswith(".pack"))
    place.write(pack, place.read(pack)[:-100])
    with pytest.raises(StoreError, match="corrupt-blob"):
        store.gc()
    assert store.gc(drop_damaged=True).dropped == ("y",)
    assert store.names() == ["x"]
    assert store.fsck()
    assert len([key for key in place.files() if key.endswith(".pack")]) == 1


def test_threads_share_one_store(store: Store) -> None:
    tensors = {f"{n}": torch.full((n + 1,), float(n)) for n in range(24)}
    failures: list[BaseException] = []

    def work(part: int) -> None:
        try:
            for n in range(part, 24, 4):
                store.put(f"{n}", tensors[f"{n}"], wait=bool(n % 2))
                assert torch.equal(store.get(f"{n}"), tensors[f"{n}"])
        except BaseException as e:
            failures.append(e)
            raise

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.names() == sorted(tensors)
    assert store.fsck()


def test_requires_grad_is_restored_in_inference_mode_too(store: Store) -> None:
    store.put("x", torch.ones(2, requires_grad=True))
    with torch.inference_mode():
        assert store.get("x").requires_grad


def test_reading_under_a_mode_that_makes_no_data_is_refused(store: Store) -> None:
    store.put("x", torch.ones(2))
    with FakeTensorMode(), pytest.raises(StoreError, match="mode-active"):
        store.get("x")


def test_an_absent_device_is_explained(store: Store) -> None:
    store.put("x", torch.ones(2))
    with pytest.raises(StoreError, match="device-unavailable"):
        store.get("x", device="cuda:7")
