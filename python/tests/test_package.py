"""What the package does without a server: arrays, modules, errors."""

import subprocess
import sys

import forebay
import numpy as np
import pyarrow as pa
import pytest
from forebay import arrays, errors, modules


def numpy_of(array: pa.Array, metadata=None) -> np.ndarray:
    return arrays.to_numpy(array, pa.field("x", array.type, metadata=metadata))


def test_tensors_are_views_of_the_buffer():
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    got = numpy_of(tensors)
    assert got.shape == (2, 3, 4) and not got.flags.owndata
    assert got.__array_interface__["data"][0] == tensors.storage.values.buffers()[1].address
    assert (numpy_of(tensors.slice(1)) == got[1:]).all()


@pytest.mark.parametrize(
    "name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
)
def test_numbers_keep_their_type_and_memory(name):
    values = np.arange(5).astype(name)
    array = pa.array(values, pa.from_numpy_dtype(values.dtype))
    got = numpy_of(array.slice(1))
    assert got.dtype == values.dtype and (got == values[1:]).all()
    assert got.__array_interface__["data"][0] == array.buffers()[1].address + values.itemsize


def test_other_columns():
    assert numpy_of(pa.array([True, False, True]).slice(1)).tolist() == [False, True]
    masked = numpy_of(pa.array([1, None, 3]))
    assert masked.tolist() == [1, None, 3] and masked.dtype == np.int64
    assert numpy_of(pa.array(["a", None])).tolist() == ["a", None]
    assert numpy_of(pa.array(["a", "b", "a"]).dictionary_encode()).tolist() == ["a", "b", "a"]
    assert [v.tolist() for v in numpy_of(pa.array([[1, 2], [3], []]).slice(1))] == [[3], []]
    assert numpy_of(pa.array([1], pa.timestamp("us"))).dtype == "datetime64[us]"
    assert numpy_of(pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2))).tolist() == [[1, 2], [3, 4]]
    assert numpy_of(pa.array([[{"a": 1}], [{"a": 2}]])).tolist() == [[{"a": 1}], [{"a": 2}]]
    assert numpy_of(pa.array([], pa.int32())).shape == (0,)
    assert arrays.joined([numpy_of(pa.array([1, None])), numpy_of(pa.array([3]))]).tolist() == [1, None, 3]


def test_ragged_tensors_are_an_array_of_arrays():
    kind = pa.struct([("data", pa.list_(pa.uint8())), ("shape", pa.list_(pa.int32(), 3))])
    rows = [{"data": [1, 2, 3], "shape": [1, 1, 3]}, None, {"data": [1] * 12, "shape": [2, 2, 3]}]
    metadata = {"ARROW:extension:name": "arrow.variable_shape_tensor", "ARROW:extension:metadata": "{}"}
    got = numpy_of(pa.array(rows, kind), metadata)
    assert got[0].shape == (1, 1, 3) and got[1] is None and got[2].shape == (2, 2, 3)


def test_arrays_do_not_import_pandas():
    code = "import sys, forebay, pyarrow as pa; from forebay import arrays; arrays.to_numpy(pa.array([1.5]), pa.field('x', pa.float64())); assert 'pandas' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_shares_the_memory():
    torch = pytest.importorskip("torch")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = arrays.to_torch("x", array)
    assert isinstance(tensor, torch.Tensor) and tensor.data_ptr() == array.ctypes.data
    with pytest.raises(forebay.BadInput, match="column `x` holds nulls"):
        arrays.to_torch("x", np.ma.masked_array([1.0], [True]))


def test_modules_that_a_pipeline_needs(tmp_path):
    (tmp_path / "a.py").write_text(
        "import numpy\nfrom kit import (\n    inner,  # a comment\n    other)\nimport b as c, missing\n"
    )
    (tmp_path / "b.py").write_text("def f():\n    from kit.deep import x\n")
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "kit").mkdir()
    for name in ("__init__", "inner", "deep", "far"):
        (tmp_path / "kit" / f"{name}.py").write_text("from . import far\n" if name == "deep" else "")
    found = modules.gather(tmp_path, '[[steps]]\nname = "s"\npython = "a:f"\n', "p.toml")
    assert sorted(found) == ["a", "b", "kit", "kit.deep", "kit.far", "kit.inner"]
    with pytest.raises(forebay.NotFound, match="p.toml: no module `nothing` beside it"):
        modules.gather(tmp_path, '[[steps]]\npython = "nothing:f"\n', "p.toml")
    with pytest.raises(forebay.BadInput, match="p.toml"):
        modules.gather(tmp_path, "[[", "p.toml")


def test_errors_keep_their_kind():
    error = errors.make("not_found", "no dataset `x`", "see `forebay datasets`")
    assert isinstance(error, forebay.NotFound) and error.kind == "not_found"
    assert str(error) == "no dataset `x`; see `forebay datasets`"
    assert isinstance(errors.from_flight(pa.lib.ArrowInvalid("bad")), forebay.BadInput)
    said = "gRPC returned precondition failed error, with message: the job is finished; restart it"
    error = errors.from_flight(pa.lib.ArrowInvalid(said))
    assert isinstance(error, forebay.FailedPrecondition) and error.message == "the job is finished; restart it"
    error = errors.from_flight(
        pa.lib.ArrowException("Unknown: Flight returned already exists error, with message: `x` exists")
    )
    assert isinstance(error, forebay.AlreadyExists) and error.message == "`x` exists"
    assert errors.make("a kind of later", "m").kind == "internal"


def test_wrong_settings_are_refused_before_a_server_is_asked():
    for settings, kind in [
        ({"format": "numpyy"}, forebay.BadInput),
        ({"prefetch_batches": 0}, forebay.BadInput),
        ({"world_size": 2, "rank": 0}, forebay.BadInput),
    ]:
        with pytest.raises(kind):
            forebay.Loader(None, "points", **settings)
    with pytest.raises(TypeError):
        forebay.Loader(None, "points", batchsize=3)


def test_connect_says_what_is_missing(monkeypatch):
    for name in ("FOREBAY_SERVER", "FOREBAY_ROOT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(forebay.BadInput, match="no server and no root"):
        forebay.connect()
    with pytest.raises(forebay.BadInput, match="both"):
        forebay.connect("grpc://127.0.0.1:1", root="x")
    with pytest.raises(forebay.Unavailable, match="127.0.0.1:1 cannot be reached"):
        forebay.connect("grpc://127.0.0.1:1")
