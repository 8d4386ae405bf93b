"""The forest's rows from granules of VIIRS and CALIPSO, against a search of all
pixels by numpy. Pixels about a kilometre apart; CALIPSO flies through."""

import datetime
import shutil

import h5py
import netCDF4
import numpy as np
import pytest
from pyhdf.SD import SD, SDC
from trainer import Ranks, refused, run_ranks, train, trained

FILL = 65533


def make_viirs(folder, time, lat, seed, satellite="VNP"):
    rows, columns = 90, 120
    rng = np.random.default_rng(seed)
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    latitude = (lat + 0.009 * r - 0.001 * c).astype("f4")
    longitude = (30 + 0.012 * c + 0.001 * r).astype("f4")
    counts = rng.integers(100, 60000, (16, rows, columns), dtype=np.uint16)
    counts[3, 10:20, :] = FILL
    counts[8, :, 60:64] = 65535
    for level, bands in [("02", counts), ("03", None)]:
        path = folder / f"{satellite}{level}MOD.{time}.002.nc"
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("y", rows)
            file.createDimension("x", columns)
            if bands is None:
                group = file.createGroup("geolocation_data")
                for key, value in [("latitude", latitude), ("longitude", longitude)]:
                    group.createVariable(key, "f4", ("y", "x"))[:] = value
                continue
            group = file.createGroup("observation_data")
            for band in range(16):
                variable = group.createVariable(
                    f"M{band + 1:02}", "u2", ("y", "x"), fill_value=65535
                )
                variable.set_auto_maskandscale(False)
                variable.scale_factor = np.float32(0.5)
                variable.add_offset = np.float32(-3)
                variable[:] = bands[band]
    return latitude, longitude, counts


def make_calipso(path, seconds, latitude, longitude, flags, fills=None):
    day = datetime.datetime(2014, 1, 1)
    stamp = 140101 + np.asarray(seconds) / 86400
    file = SD(str(path), SDC.WRITE | SDC.CREATE | SDC.TRUNC)
    assert day.year == 2014
    for name, kind, values in [
        ("Profile_UTC_Time", SDC.FLOAT64, stamp.reshape(-1, 1)),
        ("Latitude", SDC.FLOAT32, latitude.reshape(-1, 1).astype("f4")),
        ("Longitude", SDC.FLOAT32, longitude.reshape(-1, 1).astype("f4")),
        ("Feature_Classification_Flags", SDC.UINT16, flags.reshape(-1, 1)),
    ]:
        one = file.create(name, kind, values.shape)
        if name in (fills or {}):
            one.setfillvalue(fills[name])
        one[:] = values
        one.endaccess()
    file.end()


def haversine(lat1, lon1, lat2, lon2):
    a, b, c, d = map(np.radians, (lat1, lon1, lat2, lon2))
    h = np.sin((c - a) / 2) ** 2 + np.cos(a) * np.cos(c) * np.sin((d - b) / 2) ** 2
    return 2 * 6373 * np.arcsin(np.sqrt(h))


@pytest.fixture
def granules(tmp_path):
    """Two granules of VIIRS and a track of which some profiles miss them."""
    viirs = tmp_path / "viirs"
    viirs.mkdir()
    swaths = {
        "A2014001.0012": make_viirs(viirs, "A2014001.0012", 10, 1),
        "A2014001.0018": make_viirs(viirs, "A2014001.0018", 11, 2),
    }
    rng = np.random.default_rng(5)
    seconds = np.linspace(11 * 60, 25 * 60, 400)
    latitude = np.linspace(9.8, 12, 400)
    longitude = 30.7 + rng.normal(0, 0.5, 400)
    flags = rng.integers(0, 65535, 400, dtype=np.uint16)
    calipso = tmp_path / "calipso"
    calipso.mkdir()
    make_calipso(calipso / "track.hdf", seconds, latitude, longitude, flags)
    return tmp_path, swaths, (seconds, latitude, longitude, flags)


def expected_rows(begin, swath, track):
    """Every profile against every pixel."""
    latitude, longitude, counts = swath
    lat, lon = latitude.ravel(), longitude.ravel()
    rows = []
    for second, y, x, flag in zip(*track):
        y, x = np.float32(y), np.float32(x)
        if not begin <= second < begin + 360:
            continue
        distance = haversine(float(y), float(x), lat.astype("f8"), lon.astype("f8"))
        pixel = distance.argmin()
        values = counts.reshape(16, -1)[:, pixel]
        if distance[pixel] < 5 and (values < 65528).all():
            rows.append([*(values * 0.5 - 3), (int(flag) >> 5) & 3])
    return np.array(rows)


def collocate(folder, *words):
    return train(
        "forest",
        "collocate",
        f"collocate.calipso={folder / 'calipso'}",
        f"collocate.viirs={folder / 'viirs'}",
        f"collocate.rows={folder / 'rows'}",
        *words,
    )


def rows_of(folder, granule):
    with h5py.File(folder / "rows" / f"{granule}.h5") as file:
        names = [f"M{band:02}" for band in range(1, 17)] + ["label"]
        return np.column_stack([file[name][:] for name in names])


def test_collocated_rows_are_those_of_a_full_search(granules):
    folder, swaths, track = granules
    done = collocate(folder, "forest.threads=2")
    assert done.returncode == 0, done.stderr
    for time, swath in swaths.items():
        begin = int(time[9:11]) * 3600 + int(time[11:]) * 60
        expected = expected_rows(begin, swath, track)
        assert len(expected) > 20
        assert np.array_equal(rows_of(folder, f"VNP02MOD.{time}.002"), expected)
    # The folder is a table that a forest learns from.
    run = folder / "run"
    trained("forest", f"data.train={folder / 'rows'}", "forest.trees=3", f"out={run}")


@pytest.fixture
def satellites(tmp_path):
    """Two satellites in one minute, ten degrees apart, and a track through both."""
    viirs, calipso = tmp_path / "viirs", tmp_path / "calipso"
    viirs.mkdir()
    calipso.mkdir()
    swaths = {
        "VNP": make_viirs(viirs, "A2014001.0012", 10, 1),
        "VJ1": make_viirs(viirs, "A2014001.0012", 20, 2, "VJ1"),
    }
    latitude = np.concatenate([np.linspace(10.1, 10.7, 100), np.linspace(20.1, 20.7, 100)])
    flags = np.random.default_rng(0).integers(0, 65535, 200, dtype=np.uint16)
    track = (np.linspace(12 * 60, 17 * 60, 200), latitude, np.full(200, 30.7), flags)
    make_calipso(calipso / "track.hdf", *track)
    return tmp_path, swaths, track


def swath_file(folder, product, version="002"):
    return folder / "viirs" / f"{product}.A2014001.0012.{version}.nc"


@pytest.mark.parametrize("inside", [False, True])
def test_each_satellite_has_its_own_places(inside, satellites):
    folder, swaths, track = satellites
    for satellite, (latitude, longitude, _) in swaths.items():
        if inside:
            with h5py.File(swath_file(folder, f"{satellite}02MOD"), "r+") as file:
                file["geolocation_data/latitude"] = latitude
                file["geolocation_data/longitude"] = longitude
            swath_file(folder, f"{satellite}03MOD").unlink()
    done = collocate(folder)
    assert done.returncode == 0, done.stderr
    for satellite, swath in swaths.items():
        expected = expected_rows(12 * 60, swath, track)
        assert len(expected) > 20
        got = rows_of(folder, f"{satellite}02MOD.A2014001.0012.002")
        assert np.array_equal(got, expected), satellite


def test_places_that_may_be_of_another_satellite_are_refused(satellites):
    folder, swaths, track = satellites
    places = swath_file(folder, "VJ103MOD")
    twin = swath_file(folder, "VJ103MOD", "001")
    shutil.copy(places, twin)
    told = ["VJ102MOD.A2014001.0012.002.nc: several files", twin.name, places.name]
    text = refused(collocate(folder), *told, "accepted: one of its product")
    assert "VNP03MOD.A" not in text
    twin.unlink()
    places.rename(folder / "elsewhere.nc")
    told = ["VJ102MOD.A2014001.0012.002.nc", "no file of A2014001.0012 has its latitude"]
    refused(collocate(folder), *told)
    # Of no product: whoever has none takes it.
    (folder / "elsewhere.nc").rename(swath_file(folder, "places"))
    done = collocate(folder)
    assert done.returncode == 0, done.stderr
    got = rows_of(folder, "VJ102MOD.A2014001.0012.002")
    assert np.array_equal(got, expected_rows(12 * 60, swaths["VJ1"], track))


def test_profiles_without_a_time_or_a_place_are_dropped(granules):
    """Else they would be of every granule, or of none that is ever done."""
    folder, swaths, track = granules
    seconds, latitude, longitude, _ = track
    seconds[5::8] = np.nan
    seconds[6::16] = 1e300
    seconds[14::16] = (-9999 - 140101) * 86400
    seconds[7::16] = (149999 - 140101) * 86400  # yymmdd of no month
    latitude[3::16] = np.nan
    longitude[4::16] = np.nan
    latitude[11::16] = 10.5  # a place like any other, but for what the file says
    fills = {"Latitude": 10.5}
    make_calipso(folder / "calipso" / "track.hdf", *track, fills)
    latitude[11::16] = np.nan
    done = collocate(folder)
    assert done.returncode == 0, done.stderr
    whole = np.isfinite(latitude) & np.isfinite(longitude)
    begin = 12 * 60
    inside = (seconds >= begin) & (seconds < begin + 720)
    assert f"2 granules: {(whole & inside).sum()} profiles" in done.stdout
    for time, swath in swaths.items():
        expected = expected_rows(int(time[11:]) * 60, swath, track)
        assert len(expected) > 10
        assert np.array_equal(rows_of(folder, f"VNP02MOD.{time}.002"), expected)
    assert "0 granules" in collocate(folder).stdout


def test_collocation_goes_on_where_it_stopped(granules):
    folder, _, _ = granules
    assert collocate(folder).returncode == 0
    files = sorted((folder / "rows").glob("*.h5"))
    kept = files[0].stat().st_mtime_ns
    files[1].unlink()
    (folder / "rows" / (files[1].name + ".part")).write_text("torn")
    done = collocate(folder)
    assert "1 granules" in done.stdout
    assert files[0].stat().st_mtime_ns == kept and files[1].exists()


def test_rows_of_other_settings_are_done_again(granules):
    folder, _, track = granules

    def count(*words):
        done = collocate(folder, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.split(" granules")[0], done.stdout.split(", ")[-1].split()[0]

    near = count()
    assert near[0] == "2" and count()[0] == "0"
    far = count("collocate.distance=50")
    assert far[0] == "2" and int(far[1]) > int(near[1])
    # Of the track of one granule, less; the other has none now and is left alone.
    part = [values[:150] for values in track]
    make_calipso(folder / "calipso" / "track.hdf", *part)
    assert count("collocate.distance=50")[0] == "1"
    assert count("collocate.distance=50", "collocate.window=5m")[0] == "1"


def test_collocation_of_hosts_goes_on_where_each_stopped(granules):
    """Hosts with folders of their own know of different granules."""
    folder, _, _ = granules
    assert collocate(folder).returncode == 0
    first, second = sorted((folder / "rows").glob("*.h5"))
    hosts = [folder / f"host-{rank}" for rank in (0, 1)]
    for host in hosts:
        (host / "rows").mkdir(parents=True)
    shutil.copy(first, hosts[1] / "rows")
    words = ["forest", "collocate", f"collocate.calipso={folder / 'calipso'}"]
    words += [f"collocate.viirs={folder / 'viirs'}", "collocate.rows=rows"]
    ranks = run_ranks(folder, words, cwd=lambda rank: hosts[rank])
    assert "1 granules" in ranks.output(0)
    done = [path for host in hosts for path in (host / "rows").glob("*.h5")]
    assert sorted(path.name for path in done) == [first.name, second.name]
    # What they collocate is the same for all.
    for path in (folder / "viirs").glob("*.A2014001.0018.*"):
        path.rename(folder / path.name)
    shutil.copytree(folder / "viirs", hosts[1] / "viirs")
    shutil.copytree(folder / "viirs", hosts[0] / "viirs")
    for path in folder.glob("*.nc"):
        shutil.copy(path, hosts[0] / "viirs")
    words[3] = "collocate.viirs=viirs"
    with Ranks(folder, words, cwd=lambda rank: hosts[rank]) as ranks:
        assert ranks.wait() == [2, 2], ranks.output()
        text = "another list of granules than rank 0: 1 granules in viirs, 2 granules"
        assert text in ranks.output()


def test_granules_of_the_night_are_passed_over(granules):
    folder, _, _ = granules
    with h5py.File(folder / "viirs" / "VNP02MOD.A2014001.0018.002.nc", "r+") as file:
        for band in range(1, 7):
            del file["observation_data"][f"M{band:02}"]
    done = collocate(folder)
    assert done.returncode == 0, done.stderr
    assert "passed over 1 granules of the night" in done.stderr
    assert "VNP02MOD.A2014001.0018.002.nc" in done.stderr
    assert len(list((folder / "rows").glob("*.h5"))) == 1


def test_damaged_granules_are_named(granules):
    folder, _, _ = granules
    for part, name in [("viirs", "VNP02MOD.A2014001.0018.002.nc"), ("calipso", "track.hdf")]:
        path = folder / part / name
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 3])
        done = collocate(folder)
        assert done.returncode == 2 and name in done.stderr, done.stderr
        path.write_bytes(whole)
    for band in ["M01", "M07"]:
        with h5py.File(folder / "viirs" / "VNP02MOD.A2014001.0018.002.nc", "r+") as file:
            del file["observation_data"][band]
        shutil.rmtree(folder / "rows", ignore_errors=True)
        refused(collocate(folder), "VNP02MOD.A2014001.0018.002.nc: no band M01")
    (folder / "viirs" / "VNP03MOD.A2014001.0018.002.nc").unlink()
    refused(collocate(folder), "latitude and longitude")
    refused(train("forest", "collocate"), "collocate.calipso")
