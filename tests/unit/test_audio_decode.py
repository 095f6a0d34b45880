"""WAV and FLAC files to waveforms; what is broken is an error that says why."""

from __future__ import annotations

import io
import pickle
import struct
import wave

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.pipeline.audio import BadAudio, decode_audio

soundfile = pytest.importorskip("soundfile")

RATE = 8_000
FORMATS = {
    "WAV 8 bit": ("WAV", "PCM_U8", 2**-7),
    "WAV 16 bit": ("WAV", "PCM_16", 2**-15),
    "WAV 24 bit": ("WAV", "PCM_24", 2**-22),
    "WAV 32 bit": ("WAV", "PCM_32", 2**-22),
    "WAV float": ("WAV", "FLOAT", 0.0),
    "WAV double": ("WAV", "DOUBLE", 0.0),
    "WAV extensible": ("WAVEX", "PCM_16", 2**-15),
    "FLAC 8 bit": ("FLAC", "PCM_S8", 2**-7),
    "FLAC 16 bit": ("FLAC", "PCM_16", 2**-15),
    "FLAC 24 bit": ("FLAC", "PCM_24", 2**-22),
}
"""Format, kind of sample, largest rounding."""


def sound(channels: int, samples: int = 2_000) -> NDArray[np.float32]:
    at = np.arange(samples) / RATE
    noise = np.random.default_rng(1).standard_normal((channels, samples))
    tones = [np.sin(2 * np.pi * 300 * (n + 1) * at) for n in range(channels)]
    return (0.5 * np.stack(tones) + 0.02 * noise).astype(np.float32)


def encoded(x: NDArray[np.float32], kind: str) -> bytes:
    container, subtype, _ = FORMATS[kind]
    file = io.BytesIO()
    soundfile.write(file, x.T, RATE, format=container, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_gives_the_waveform_that_was_written(kind: str, channels: int) -> None:
    x = sound(channels)
    found, rate = decode_audio(encoded(x, kind))
    assert (found.shape, found.dtype, rate) == (x.shape, np.float32, RATE)
    assert found.flags.c_contiguous
    assert np.abs(found - x).max() <= FORMATS[kind][2]


def test_a_file_of_the_standard_library_is_read_too() -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(22_050)
        out.writeframes(struct.pack("<4h", 0, 16_384, -16_384, -32_768))
    found, rate = decode_audio(file.getvalue())
    assert (found.tolist(), rate) == ([[0.0, 0.5, -0.5, -1.0]], 22_050)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_cut_off_is_an_error_wherever_it_is_cut(kind: str) -> None:
    whole = encoded(sound(2), kind)
    for part in range(20):
        with pytest.raises(BadAudio):
            decode_audio(whole[: len(whole) * part // 20])
    with pytest.raises(BadAudio):
        decode_audio(whole[: -len(whole) // 50])


def test_a_wav_file_says_how_much_of_it_is_missing() -> None:
    whole = encoded(sound(1), "WAV 16 bit")
    with pytest.raises(BadAudio, match="cut off: 3900 of 4000 bytes of audio are there"):
        decode_audio(whole[:-100])


@pytest.mark.parametrize("kind", FORMATS)
def test_flipped_bytes_give_an_error_or_audio(kind: str) -> None:
    whole = encoded(sound(2, 600), kind)
    rng = np.random.default_rng(3)
    decoded = 0
    for trial in range(300):
        broken = bytearray(whole)
        # half of the trials in the header, where it hurts most
        places = rng.integers(0, 60 if trial % 2 else len(broken), size=1 + trial % 4)
        for place in places:
            broken[place] ^= int(rng.integers(1, 256))
        try:
            found, rate = decode_audio(bytes(broken), max_samples=100_000)
        except BadAudio:
            continue
        decoded += 1
        assert found.dtype == np.float32
        assert found.ndim == 2
        assert 0 < found.size <= 100_000
        assert rate > 0
        assert np.isfinite(found).all()
    assert decoded > 0 or kind.startswith("FLAC")


def test_a_frame_of_flac_whose_checksum_is_wrong_is_an_error() -> None:
    whole = bytearray(encoded(sound(1, 20_000), "FLAC 16 bit"))
    for place in range(len(whole) // 4, len(whole) - 10, len(whole) // 16):
        broken = whole.copy()
        broken[place] ^= 0x10
        with pytest.raises(BadAudio):
            decode_audio(bytes(broken))


@pytest.mark.parametrize("kind", ["WAV 16 bit", "FLAC 16 bit"])
def test_longer_recordings_than_the_cap_are_refused(kind: str) -> None:
    data = encoded(sound(2, 500), kind)
    assert decode_audio(data, max_samples=1_000)[0].shape == (2, 500)
    with pytest.raises(BadAudio, match="500 samples in 2 channels, more than max_samples=999: raise it"):
        decode_audio(data, max_samples=999)


def test_a_small_file_that_claims_to_be_huge_is_refused_by_its_header() -> None:
    data = bytearray(encoded(sound(1, 500), "FLAC 16 bit"))
    data[21] |= 0x0F  # the 36 bits that count samples begin here
    data[22:26] = b"\xff\xff\xff\xff"
    with pytest.raises(BadAudio, match="more than max_samples"):
        decode_audio(bytes(data))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a WAV or FLAC file: it begins with b''"),
        (b"\xff\xd8\xff\xe0 a picture", "not a WAV or FLAC file"),
        (b"fLaC", "cannot be decoded"),
        (b"RIFF\x04\0\0\0WAVE", "no audio"),
        (b"RIFF\x0c\0\0\0WAVEdata\0\0\0\0", "cannot be decoded"),
    ],
)
def test_what_is_no_audio_says_so(data: bytes, says: str) -> None:
    with pytest.raises(BadAudio, match=says):
        decode_audio(data)


def test_samples_that_are_no_numbers_are_an_error() -> None:
    x = sound(1)
    x[0, 7] = np.nan
    with pytest.raises(BadAudio, match="no finite numbers"):
        decode_audio(encoded(x, "WAV float"))


def test_an_empty_recording_is_an_error() -> None:
    with pytest.raises(BadAudio, match="0 samples"):
        decode_audio(encoded(sound(1, 0), "WAV 16 bit"))


def test_a_wav_file_from_a_pipe_does_not_know_its_length() -> None:
    x = sound(1)
    data = bytearray(encoded(x, "WAV 16 bit"))
    at = data.index(b"data") + 4
    data[at : at + 4] = b"\xff\xff\xff\xff"
    assert decode_audio(bytes(data))[0].shape == x.shape


def test_the_error_survives_pickling() -> None:
    assert str(pickle.loads(pickle.dumps(BadAudio("cut off")))) == "cut off"
    assert issubclass(BadAudio, ValueError)
