"""Product quantization against its equations, and against FAISS."""

import inspect
import pkgutil

import faiss
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.codes
import oracles.scores
import oracles.vectors
from rails_ray.errors import DamagedError
from rails_ray.modules.quantizers import product
from rails_ray.modules.quantizers.faiss_convert import from_faiss, to_faiss
from rails_ray.modules.quantizers.product import ProductQuantizer, Selection, pack, residual_norms, selectors_of, unpack
from rails_ray.modules.quantizers.read_back import ReadBack, excess, of_component, shortened
from support.quantizers import SELECTIONS, a_quantizer, a_rotation, some_vectors

selections = pytest.mark.parametrize("selection", SELECTIONS)


def scores_by_hand(vector: list, quantizer: ProductQuantizer, selection: Selection, bilinear: torch.Tensor) -> list:
    """How well each codeword suits each part of a vector."""
    if quantizer.rotation is not None:
        vector = oracles.codes.turn(quantizer.rotation.tolist(), vector)
    parts = oracles.codes.cut(vector, quantizer.num_subspaces)
    return [
        oracles.codes.codeword_scores(selection, part, codebook, weights)
        for part, codebook, weights in zip(parts, quantizer.codebooks.tolist(), bilinear.tolist(), strict=True)
    ]


@selections
@given(st.integers(1, 3), st.integers(2, 6), st.integers(1, 3), st.integers(0, 4), st.booleans(), st.integers(0, 99))
def test_codes_are_those_of_the_equation(
    selection: Selection, num_subspaces: int, num_codewords: int, part: int, num: int, turns: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    codebooks = torch.randn(num_subspaces, num_codewords, part, generator=generator)
    bilinear = torch.randn(num_subspaces, part, part, generator=generator)
    rotation = a_rotation(num_subspaces * part, generator) if turns else None
    quantizer = ProductQuantizer.of(codebooks, rotation, selection, bilinear)
    vectors = some_vectors(num, quantizer.width, seed)
    codes = quantizer.encode(vectors)
    assert codes.shape == (num, num_subspaces)
    for vector, code in zip(vectors.tolist(), codes.tolist(), strict=True):
        for scores, chosen in zip(scores_by_hand(vector, quantizer, selection, bilinear), code, strict=True):
            assert scores[chosen] == pytest.approx(max(scores), abs=1e-5)  # equal but for rounding


def test_blocks_do_not_change_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    quantizer, vectors = a_quantizer(turns=6), some_vectors(10, 6)
    whole = quantizer.encode(vectors)
    monkeypatch.setattr(product, "BLOCK_ITEMS", 3)
    assert torch.equal(quantizer.encode(vectors), whole)


def test_the_first_of_equal_codewords_is_chosen() -> None:
    quantizer = ProductQuantizer.of(torch.tensor([[[1.0], [-1.0], [1.0]]]))
    assert quantizer.encode(torch.tensor([[0.0], [1.0], [-1.0]])).tolist() == [[0], [0], [1]]


@given(st.integers(0, 5), st.sampled_from([None, 3, 6]), st.integers(0, 99))
def test_a_look_up_is_the_inner_product_with_what_is_read_back(num: int, turns: int | None, seed: int) -> None:
    quantizer = a_quantizer(turns=turns, seed=seed)
    codes, queries = quantizer.encode(some_vectors(num, 6, seed + 1)), some_vectors(2, 6, seed + 2)
    back = quantizer.decode(codes)
    rotation = torch.eye(6) if turns is None else torch.block_diag(*[quantizer.rotation] * (6 // turns))
    by_hand = [
        oracles.codes.read_back(code, quantizer.codebooks.tolist(), rotation.tolist()) for code in codes.tolist()
    ]
    assert torch.allclose(back, torch.tensor(by_hand).view_as(back), atol=1e-6)
    tables = quantizer.lookup_table(queries)
    for line, query in enumerate(queries.tolist()):
        looked_up = [oracles.scores.look_up(tables[line].tolist(), code) for code in codes.tolist()]
        assert looked_up == pytest.approx([oracles.vectors.dot(query, item) for item in by_hand], abs=1e-5)
    assert torch.allclose(quantizer.rotated(queries) @ quantizer.decode_rotated(codes).T, queries @ back.T, atol=1e-5)


def test_codes_of_candidates_are_read_back_in_their_shape() -> None:
    quantizer = a_quantizer(turns=6)
    codes = quantizer.encode(some_vectors(4, 6))
    own = codes[torch.tensor([[3, 0], [1, 1]])]
    assert torch.equal(quantizer.decode_rotated(own)[0, 1], quantizer.decode_rotated(codes)[0])


@given(st.integers(0, 20), st.integers(1, 2), st.integers(0, 99))
def test_a_score_is_at_most_the_residual_from_the_look_up(num: int, num_vectors: int, seed: int) -> None:
    quantizer = a_quantizer(4, 5, 2, seed=seed, turns=4)
    vectors, queries = (
        some_vectors(num, 8, seed),
        torch.nn.functional.normalize(some_vectors(3, 8 // num_vectors, seed + 1)),
    )
    codes = quantizer.encode(vectors)
    residuals = residual_norms(quantizer, vectors, codes, num_vectors)
    difference = (vectors - quantizer.decode(codes)).unflatten(1, (num_vectors, -1))
    assert torch.allclose(residuals, difference.norm(dim=2))
    moved = torch.einsum("bd,xvd->bxv", queries, difference).abs()
    assert (moved <= residuals + 1e-5).all()


@given(st.integers(0, 4), st.integers(1, 7), st.integers(0, 99))
def test_half_bytes_are_packed_and_unpacked(num: int, num_subspaces: int, seed: int) -> None:
    codes = torch.randint(16, (num, num_subspaces), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    packed = pack(codes)
    assert packed.shape == (num, (num_subspaces + 1) // 2)
    assert torch.equal(unpack(packed, num_subspaces), codes)
    with pytest.raises(DamagedError, match=rf"{num_subspaces + 2} codes must take {packed.shape[1] + 1} bytes, got"):
        unpack(packed, num_subspaces + 2)


# FAISS


@pytest.mark.parametrize("num_codewords", [2, 5, 16, 17, 256])
@pytest.mark.parametrize("turns", [None, 3, 6])
def test_faiss_scores_alike_and_gives_the_quantizer_back(num_codewords: int, turns: int | None) -> None:
    quantizer = a_quantizer(num_codewords=num_codewords, turns=turns)
    vectors, queries = some_vectors(300, 6), some_vectors(4, 6, 1)
    codes = quantizer.encode(vectors)
    index = to_faiss(quantizer, codes)
    scores, rows = index.search(queries.numpy(), 300)
    tables = quantizer.lookup_table(queries)
    expected = tables[:, torch.arange(3), codes.long()].sum(dim=2)
    assert torch.allclose(torch.from_numpy(scores), expected.gather(1, torch.from_numpy(rows)), atol=1e-5)
    plain = index if turns is None else faiss.downcast_index(index.index)
    assert plain.pq.nbits == (4 if num_codewords <= 16 else 8)
    again, stored = from_faiss(faiss.deserialize_index(faiss.serialize_index(index)))
    assert torch.equal(stored, codes)
    assert torch.equal(again.codebooks[:, :num_codewords], quantizer.codebooks)
    assert torch.equal(again.encode(vectors), codes)
    assert torch.allclose(again.decode(codes), quantizer.decode(codes), atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_faiss_quantizers_come_in(bits: int) -> None:
    vectors = some_vectors(600, 8).numpy()
    index = faiss.index_factory(8, f"OPQ4,PQ4x{bits}", faiss.METRIC_INNER_PRODUCT)
    coded = faiss.downcast_index(index.index)
    coded.pq.cp.min_points_per_centroid = 1
    coded.do_polysemous_training = False  # takes seconds, and decides no more than the order of codewords
    index.train(vectors)
    index.add(vectors)
    quantizer, codes = from_faiss(index)
    assert torch.allclose(quantizer.decode(codes), torch.from_numpy(index.reconstruct_n(0, 600)), atol=1e-5)
    assert (quantizer.encode(torch.from_numpy(vectors)) == codes).float().mean() > 0.999  # but for rounding


def test_an_empty_index_of_faiss() -> None:
    quantizer, codes = from_faiss(to_faiss(a_quantizer()))
    assert codes.shape == (0, 3)
    assert quantizer.width == 6


# A search by components


@pytest.mark.parametrize("num_components", [1, 3])
def test_items_are_read_back_a_block_at_a_time(num_components: int) -> None:
    quantizer = a_quantizer(turns=6 // num_components)
    codes, gate = quantizer.encode(some_vectors(7, 6)), torch.randn(7, 4)
    items = ReadBack(quantizer, codes, gate, num_components)
    assert (len(items), items.width, items.dtype, items.has_gate) == (7, 6 // num_components, torch.float32, True)
    assert items.vectors(None) is None
    back = shortened(quantizer.decode_rotated(codes).view(7, num_components, -1))
    for rows in (slice(2, 5), [4, 0], torch.tensor([[1, 1], [6, 2]])):
        taken = items.taken(rows)
        assert torch.equal(taken.components, back[rows])
        assert taken.gate is not None
        assert torch.equal(taken.gate, gate[rows])
    for number in range(num_components):
        own, place = of_component(quantizer, num_components, number)
        assert torch.equal(shortened(own.decode_rotated(codes[:, place])[:, None])[:, 0], back[:, number])


def test_what_is_longer_than_one_is_shortened() -> None:
    """That brings it nearer to any vector of length 1, and moves a look-up by at most the excess."""
    quantizer = a_quantizer()
    items = torch.nn.functional.normalize(some_vectors(50, 6).view(50, 3, 2), dim=2)
    codes = quantizer.encode(items.flatten(1))
    raw = quantizer.decode(codes).view(50, 3, 2)
    short, over = shortened(raw), excess(quantizer, codes, 3)
    assert short.norm(dim=2).max() < 1 + 1e-6
    assert torch.equal(short[raw.norm(dim=2) <= 1], raw[raw.norm(dim=2) <= 1])
    assert ((items - short).norm(dim=2) <= (items - raw).norm(dim=2) + 1e-6).all()
    assert torch.allclose((raw - short).norm(dim=2), over, atol=1e-5)
    assert over.max() > 0.1


# Errors


def test_sizes_that_cannot_be() -> None:
    product.check_sizes(6, 3, 2)
    for num_subspaces in (4, 0):
        with pytest.raises(
            ValueError, match=f"num_subspaces must divide the 6 numbers of a vector, got {num_subspaces}"
        ):
            product.check_sizes(6, num_subspaces, 4)
    for num_codewords in (1, 257):
        with pytest.raises(
            ValueError, match=rf"at least 2 and at most the 256 that a byte tells apart, got {num_codewords}"
        ):
            product.check_sizes(6, 3, num_codewords)
        with pytest.raises(ValueError, match="num_codewords must be at least 2"):
            a_quantizer(num_codewords=num_codewords)


def test_vectors_that_are_none() -> None:
    quantizer, vectors = a_quantizer(), some_vectors(3, 6)
    vectors[1, 2] = torch.nan
    with pytest.raises(ValueError, match="vectors must be finite, got NaN or infinity in row 1"):
        quantizer.encode(vectors)
    for call in (quantizer.encode, quantizer.lookup_table):
        with pytest.raises(ValueError, match="must have the 6 numbers that a code stands for, got 5"):
            call(some_vectors(3, 5))


def test_codes_of_another_codebook() -> None:
    quantizer = a_quantizer()
    with pytest.raises(ValueError, match="codes must have the 3 parts of the codebooks, got 4"):
        quantizer.decode(torch.zeros(2, 4, dtype=torch.uint8))
    told = "codes must be at least 0 and below the 5 codewords of a codebook, got"
    with pytest.raises(ValueError, match=f"{told} 5"):
        quantizer.decode(torch.full((2, 3), 5, dtype=torch.uint8))
    with pytest.raises(ValueError, match=f"{told} -1"):
        quantizer.decode(torch.tensor([[0, -1, 5]]))
    with pytest.raises(ValueError, match=f"{told} 7"):
        to_faiss(quantizer, torch.full((2, 3), 7, dtype=torch.uint8))


def test_parts_that_do_not_fit_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for checked in ("ProductQuantizer.__init__", "check_rotation"):  # shapes in signatures are checked by tests alone
        name = f"rails_ray.modules.quantizers.product.{checked}"
        monkeypatch.setattr(name, inspect.unwrap(pkgutil.resolve_name(name.replace("product.", "product:"))))
    codebooks = torch.randn(3, 5, 2)
    fitting = selectors_of(codebooks, "l2")
    for selectors, biases in ((fitting[0][:, :4], fitting[1]), (fitting[0], fitting[1][:, :4])):
        with pytest.raises(ValueError, match=r"selectors and biases must fit codebooks of \[3, 5, 2\], got"):
            ProductQuantizer(codebooks, selectors, biases)
    for rotation in (torch.eye(5), torch.eye(6)[:3]):
        with pytest.raises(ValueError, match="a rotation must be square and divide 6 numbers, got"):
            ProductQuantizer(codebooks, *fitting, rotation)
    with pytest.raises(ValueError, match="a rotation must keep lengths, got a matrix that changes them"):
        ProductQuantizer(codebooks, *fitting, 2 * torch.eye(6))


@pytest.mark.parametrize("name", ["codebooks", "rotation"])
def test_a_quantizer_that_is_not_finite(name: str) -> None:
    parts = {"codebooks": torch.randn(3, 5, 2), "rotation": torch.eye(6)}
    parts[name][0, 0] = torch.nan
    with pytest.raises(ValueError, match=f"{name} of a quantizer must be finite, got NaN or infinity"):
        ProductQuantizer(parts["codebooks"], *selectors_of(torch.randn(3, 5, 2), "l2"), parts["rotation"])


def test_indexes_of_faiss_that_are_none() -> None:
    with pytest.raises(ValueError, match="metric_type must be METRIC_INNER_PRODUCT, 0, got 1"):
        from_faiss(faiss.IndexPQ(6, 3, 8))
    with pytest.raises(ValueError, match="an index of codes must be an IndexPQ of FAISS, got an IndexFlat"):
        from_faiss(faiss.IndexFlatIP(6))
    with pytest.raises(ValueError, match="a code must have 4 or 8 bits, got 6"):
        from_faiss(faiss.IndexPQ(6, 3, 6, faiss.METRIC_INNER_PRODUCT))
    with pytest.raises(ValueError, match="codes must stand behind a rotation, got a PCAMatrix"):
        from_faiss(faiss.index_factory(6, "PCA4,PQ2", faiss.METRIC_INNER_PRODUCT))
    with pytest.raises(ValueError, match="a rotation must keep lengths, got a matrix that changes them"):
        from_faiss(stretched())


def stretched() -> faiss.Index:
    index = to_faiss(a_quantizer(turns=6))
    matrix = faiss.downcast_VectorTransform(index.chain.at(0))
    faiss.copy_array_to_vector(2 * faiss.vector_to_array(matrix.A), matrix.A)
    return index
