"""Arrow columns as numpy arrays and torch tensors, straight from their buffers.

``Array.to_numpy`` is never called: it imports pandas where that is installed, which takes seconds in the first batch.
"""

import math

import numpy as np
import pyarrow as pa

from .errors import BadInput

_EXTENSION = b"ARROW:extension:name"
_RAGGED = b"arrow.variable_shape_tensor"


def to_numpy(column: pa.Array, field: pa.Field) -> np.ndarray:
    """One column. Fixed-width values without nulls are read-only views of the received buffer."""
    dtype = column.type
    if isinstance(dtype, pa.FixedShapeTensorType):
        return _tensors(column.storage, list(dtype.shape), dtype.permutation)
    if isinstance(dtype, pa.BaseExtensionType):
        return to_numpy(column.storage, field)
    if pa.types.is_dictionary(dtype):
        return to_numpy(column.dictionary_decode(), field)
    if (field.metadata or {}).get(_EXTENSION) == _RAGGED and pa.types.is_struct(dtype):
        return _ragged(column)
    if pa.types.is_fixed_size_list(dtype) and _plain(dtype.value_type):
        return _tensors(column, [dtype.list_size], None)
    if pa.types.is_boolean(dtype):
        return _masked(_booleans(column), column)
    if _plain(dtype):
        return _masked(_values(column), column)
    if (pa.types.is_list(dtype) or pa.types.is_large_list(dtype)) and _plain(dtype.value_type):
        return _lists(column)
    return _objects(column.to_pylist())


def _plain(dtype: pa.DataType) -> bool:
    return _numpy_type(dtype) is not None


def _numpy_type(dtype: pa.DataType) -> np.dtype | None:
    """The numpy type with the same bytes, if there is one."""
    types = pa.types
    if types.is_integer(dtype):
        return np.dtype(str(dtype))
    if types.is_floating(dtype):
        return np.dtype(f"float{dtype.bit_width}")
    if types.is_timestamp(dtype):
        return np.dtype(f"datetime64[{dtype.unit}]")
    if types.is_duration(dtype):
        return np.dtype(f"timedelta64[{dtype.unit}]")
    if types.is_date64(dtype):
        return np.dtype("datetime64[ms]")
    return None


def _values(column: pa.Array) -> np.ndarray:
    if len(column) == 0:
        return np.empty(0, _numpy_type(column.type))
    return np.frombuffer(column.buffers()[1], _numpy_type(column.type), len(column) + column.offset)[column.offset :]


def _bits(buffer: pa.Buffer, offset: int, length: int) -> np.ndarray:
    packed = np.frombuffer(buffer, np.uint8, (offset + length + 7) // 8)
    return np.unpackbits(packed, bitorder="little")[offset : offset + length].view(np.bool_)


def _booleans(column: pa.Array) -> np.ndarray:
    return _bits(column.buffers()[1], column.offset, len(column)) if len(column) else np.empty(0, np.bool_)


def _masked(values: np.ndarray, column: pa.Array) -> np.ndarray:
    if column.null_count == 0:
        return values
    return np.ma.masked_array(values, ~_bits(column.buffers()[0], column.offset, len(column)))


def _objects(values: list) -> np.ndarray:
    out = np.empty(len(values), object)
    for row, value in enumerate(values):
        out[row] = value
    return out


def _tensors(storage: pa.Array, shape: list[int], permutation: list[int] | None) -> np.ndarray:
    size = math.prod(shape)
    values = storage.values
    start = storage.offset * size
    flat = values.slice(start, len(storage) * size)
    array = (_booleans(flat) if pa.types.is_boolean(flat.type) else _values(flat)).reshape(len(storage), *shape)
    if permutation:
        array = array.transpose(0, *(1 + p for p in permutation))
    if storage.null_count == 0:
        return array
    valid = _bits(storage.buffers()[0], storage.offset, len(storage))
    return np.ma.masked_array(array, np.broadcast_to(~valid.reshape(-1, *[1] * len(shape)), array.shape))


def _offsets(column: pa.Array) -> np.ndarray:
    wide = pa.types.is_large_list(column.type) or pa.types.is_large_binary(column.type)
    count = column.offset + len(column) + 1
    return np.frombuffer(column.buffers()[1], np.int64 if wide else np.int32, count)[column.offset :]


def _lists(column: pa.Array) -> np.ndarray:
    if len(column) == 0:
        return np.empty(0, object)
    values, offsets = _values(column.values), _offsets(column)
    out = np.empty(len(column), object)
    for row in range(len(column)):
        out[row] = values[offsets[row] : offsets[row + 1]]
    for row in np.flatnonzero(_nulls(column)):
        out[row] = None
    return out


def _nulls(column: pa.Array) -> np.ndarray:
    if column.null_count == 0:
        return np.zeros(len(column), np.bool_)
    return ~_bits(column.buffers()[0], column.offset, len(column))


def _ragged(column: pa.Array) -> np.ndarray:
    """Images of many sizes: an array of arrays, each a view."""
    data, shapes = column.field("data"), column.field("shape")
    axes = shapes.type.list_size
    values = _lists(data)
    lengths = _values(shapes.values.slice(shapes.offset * axes, len(column) * axes)).reshape(-1, axes)
    nulls = _nulls(column)
    out = np.empty(len(column), object)
    for row in range(len(column)):
        out[row] = None if nulls[row] else values[row].reshape(lengths[row])
    return out


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """The parts of a batch as one array; one part is left where it is."""
    if len(parts) == 1:
        return parts[0]
    join = np.ma.concatenate if any(isinstance(p, np.ma.MaskedArray) for p in parts) else np.concatenate
    return join(parts)


def to_torch(name: str, array: np.ndarray, device=None):
    """A tensor on the same memory; strings and other objects stay as they are, lists become lists of tensors."""
    import warnings

    import torch

    if isinstance(array, np.ma.MaskedArray):
        raise BadInput(
            f"column `{name}` holds nulls, which torch tensors cannot", "fill them in a step, as coalesce(x, 0)"
        )
    if array.dtype == object:
        if len(array) and all(isinstance(value, np.ndarray) for value in array):
            return [to_torch(name, value, device) for value in array]
        return array.tolist()
    if array.dtype.kind in "mM":
        array = array.view(np.int64)
    with warnings.catch_warnings():
        # The received buffer is read-only; copying every batch to silence torch would cost what zero copy saves.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        tensor = torch.from_numpy(array)
    return tensor if device is None else tensor.to(device, non_blocking=True)


def to_jax(name: str, array: np.ndarray, device=None):
    """A jax array; strings and other objects stay as they are, lists become lists of arrays."""
    import jax

    return _converted("jax", to_jax, lambda values: jax.device_put(values, device), name, array, device)


def to_tf(name: str, array: np.ndarray, device=None):
    """A TensorFlow tensor; strings and other objects stay as they are, lists become lists of tensors."""
    import tensorflow as tf

    def convert(values: np.ndarray):
        with tf.device(device):
            return tf.convert_to_tensor(values)

    return _converted("TensorFlow", to_tf, convert, name, array, device)


def _converted(library: str, again, convert, name: str, array: np.ndarray, device):
    if isinstance(array, np.ma.MaskedArray):
        raise BadInput(f"column `{name}` holds nulls, which {library} cannot", "fill them in a step, as coalesce(x, 0)")
    if array.dtype == object:
        if len(array) and all(isinstance(value, np.ndarray) for value in array):
            return [again(name, value, device) for value in array]
        return array.tolist()
    return convert(array.view(np.int64) if array.dtype.kind in "mM" else array)


CONVERSIONS = {"torch": to_torch, "jax": to_jax, "tf": to_tf}
