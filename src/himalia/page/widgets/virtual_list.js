// A list of any number of rows; only the visible ones are elements. Keeps the newest `capacity` rows.

import { h } from "./elements.js";
import { trackUserScroll } from "./scrolling.js";

const OVERSCAN = 6;
const PAINT_EVERY_MS = 50; // nobody reads quicker, and painting is most of the work in a flood

/**
 * `fill(element, row)` shows a row in an element, which is reused for other rows. `onSelect(row)` is called when a row is
 * selected, `onScroll({atEnd})` when the user scrolled. While `following`, the end stays visible.
 */
export class VirtualList {
  #rows = [];
  #dropped = 0; // rows that went at the front: row n of all is #rows[n - #dropped]
  #pool = [];
  #fill;
  #capacity;
  #rowHeight;
  #inner = h("div", { class: "vlist-inner", role: "presentation" });
  #isPlanned = false;
  #height = 0;
  #selected = null;
  #onSelect;
  #onScroll;
  #isByHand;
  #paintedAt = -Infinity;
  #timer = null;
  following = true;

  constructor({ fill, capacity, rowHeight, label, onSelect, onScroll }) {
    this.#fill = fill;
    this.#capacity = capacity;
    this.#rowHeight = rowHeight;
    this.#onSelect = onSelect;
    this.#onScroll = onScroll;
    this.element = h("div", { class: "vlist", tabindex: "0", role: "listbox", "aria-label": label }, this.#inner);
    this.#isByHand = trackUserScroll(this.element);
    this.element.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.#onKey(event));
    this.#inner.addEventListener("click", (event) => this.#onClick(event));
    this.resizes = new ResizeObserver(([entry]) => {
      this.#height = entry.contentRect.height;
      this.#plan();
    });
    this.resizes.observe(this.element);
  }

  get length() {
    return this.#rows.length;
  }

  get rows() {
    return this.#rows;
  }

  append(rows) {
    this.#rows.push(...rows.slice(-this.#capacity));
    // A tenth at a time: removing a few rows with every batch would move all others every time.
    if (this.#rows.length > this.#capacity * 1.1) this.#trim(this.#rows.length - this.#capacity);
    this.#planSoon();
  }

  /** Insert rows before the first; the visible rows stay where they are. */
  prepend(rows) {
    if (!rows.length) return;
    this.#rows.unshift(...rows);
    this.#dropped -= rows.length;
    this.#inner.style.height = `${this.#rows.length * this.#rowHeight}px`;
    if (!this.following) this.element.scrollTop += rows.length * this.#rowHeight;
    this.#plan();
  }

  clear() {
    this.#dropped += this.#rows.length;
    this.#rows = [];
    this.#selected = null;
    this.#plan();
  }

  showEnd() {
    this.following = true;
    this.#plan();
  }

  showStart() {
    this.following = false;
    this.element.scrollTop = 0;
    this.#plan();
  }

  close() {
    this.resizes.disconnect();
  }

  #trim(number) {
    this.#rows.splice(0, number);
    this.#dropped += number;
    if (!this.following) this.element.scrollTop -= number * this.#rowHeight;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const atEnd = scrollHeight - scrollTop - clientHeight < this.#rowHeight;
    if (atEnd || this.#isByHand()) this.#onScroll?.({ atEnd });
    this.#plan();
  }

  /** New rows are painted at intervals; actions of the user at once. */
  #planSoon() {
    const wait = PAINT_EVERY_MS - (performance.now() - this.#paintedAt);
    if (wait <= 0) return this.#plan();
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#plan();
    }, wait);
  }

  #plan() {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    this.#isPlanned = false;
    this.#paintedAt = performance.now();
    const total = this.#rows.length * this.#rowHeight;
    this.#inner.style.height = `${total}px`;
    const end = Math.max(total - this.#height, 0);
    if (this.following && Math.abs(this.element.scrollTop - end) > 1) {
      this.element.scrollTop = end;
    }
    const top = this.following ? end : Math.min(this.element.scrollTop, end);
    this.#show(top);
  }

  #show(top) {
    const first = Math.max(Math.floor(top / this.#rowHeight) - OVERSCAN, 0);
    const number = Math.ceil(this.#height / this.#rowHeight) + 2 * OVERSCAN;
    while (this.#pool.length < number) this.#pool.push(this.#makeElement());
    const size = this.#pool.length;
    for (let index = first; index < first + size; index += 1) {
      const element = this.#pool[(((index + this.#dropped) % size) + size) % size];
      const row = index < first + number ? this.#rows[index] : undefined;
      this.#place(element, row, index);
    }
  }

  #makeElement() {
    const element = h("div", { class: "vrow", role: "option" });
    element.id = `row-${Math.random().toString(36).slice(2)}`;
    this.#inner.append(element);
    return element;
  }

  #place(element, row, index) {
    element.hidden = row === undefined;
    if (row === undefined) {
      element.row = undefined;
      return;
    }
    element.style.transform = `translateY(${index * this.#rowHeight}px)`;
    const isSelected = row === this.#selected;
    element.setAttribute("aria-selected", isSelected);
    element.setAttribute("aria-posinset", index + 1);
    element.setAttribute("aria-setsize", this.#rows.length);
    if (isSelected) this.element.setAttribute("aria-activedescendant", element.id);
    if (element.row === row) return;
    element.row = row;
    this.#fill(element, row);
  }

  // Selecting a row

  #onClick(event) {
    const row = event.target.closest(".vrow")?.row;
    if (row) this.#choose(row);
  }

  #choose(row) {
    this.#selected = row;
    this.#onSelect?.(row);
    this.#plan();
  }

  #onKey(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || !this.#rows.length) return;
    event.preventDefault();
    const at = this.#selected ? this.#rows.indexOf(this.#selected) : this.#rows.length;
    const index = Math.min(Math.max(at + step, 0), this.#rows.length - 1);
    if (event.key === "ArrowUp" || event.key === "PageUp" || event.key === "Home") this.#onScroll?.({ atEnd: false });
    this.#choose(this.#rows[index]);
    this.#reveal(index);
  }

  #reveal(index) {
    const top = index * this.#rowHeight;
    const { scrollTop } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.#rowHeight > scrollTop + this.#height) {
      this.element.scrollTop = top + this.#rowHeight - this.#height;
    }
  }
}
