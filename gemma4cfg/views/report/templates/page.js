"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");

  // Theme: the system's until the button says otherwise. Storage may be closed to a local file.
  const themes = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  const setTheme = (name) => {
    if (name === "auto") delete root.dataset.theme;
    else root.dataset.theme = name;
    button.textContent = `theme: ${name}`;
  };
  let theme = "auto";
  try { theme = localStorage.getItem("theme") ?? theme; } catch { /* closed */ }
  if (!themes.includes(theme)) theme = "auto";
  setTheme(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    setTheme(theme);
    try { localStorage.setItem("theme", theme); } catch { /* closed */ }
  });

  // Tooltips: of a map's cell the layer's words and the rank's, of anything else its own.
  const texts = new Map();
  for (const script of document.querySelectorAll("script[type='application/json']"))
    texts.set(script.dataset.map, JSON.parse(script.textContent));
  const wordsOf = (item) => item.dataset.tip
    ?? `${item.parentNode.dataset.row}\n${texts.get(item.closest("table").id)[item.dataset.text]}`;
  const show = (item) => {
    tip.textContent = wordsOf(item);
    tip.hidden = false;
    const at = item.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const below = at.bottom + 6 + box.height < innerHeight;
    tip.style.left = `${Math.max(4, Math.min(at.left, innerWidth - box.width - 4))}px`;
    tip.style.top = `${below ? at.bottom + 6 : Math.max(4, at.top - box.height - 6)}px`;
  };
  const hide = () => { tip.hidden = true; };
  const itemOf = (event) => event.target.closest?.("[data-tip], [data-text]");
  document.addEventListener("pointerover", (event) => { const item = itemOf(event); if (item) show(item); else hide(); });
  document.addEventListener("focusin", (event) => {
    const item = itemOf(event);
    if (!item) return hide();
    item.setAttribute("aria-describedby", "tip");
    show(item);
  });
  document.addEventListener("focusout", (event) => { itemOf(event)?.removeAttribute("aria-describedby"); hide(); });
  document.addEventListener("scroll", () => {
    const item = document.activeElement?.closest?.("[data-tip], [data-text]");
    const at = item?.getBoundingClientRect();
    if (at && !tip.hidden && at.bottom > 0 && at.top < innerHeight) show(item);
    else hide();
  }, true);

  // One tab stop a group; arrows go on inside. A map moves by row and column.
  for (const group of document.querySelectorAll("[data-group]")) {
    const items = [...group.querySelectorAll("[data-tip], [data-text]")];
    const columns = Number(group.dataset.group);
    const focus = (at) => {
      const item = items[at];
      if (!item) return;
      for (const other of group.querySelectorAll("[tabindex='0']")) other.setAttribute("tabindex", "-1");
      item.setAttribute("tabindex", "0");
      item.focus();
      item.scrollIntoView({ block: "nearest", inline: "nearest" });
    };
    items.forEach((item, at) => item.setAttribute("tabindex", at ? "-1" : "0"));
    group.addEventListener("click", (event) => { const item = itemOf(event); if (item) focus(items.indexOf(item)); });
    group.addEventListener("keydown", (event) => {
      const at = items.indexOf(event.target);
      if (at < 0) return;
      const column = at % columns, start = at - column, end = Math.min(start + columns, items.length) - 1;
      const to = {
        ArrowRight: Math.min(at + 1, end), ArrowLeft: Math.max(at - 1, start),
        ArrowDown: at + columns < items.length ? at + columns : at, ArrowUp: at >= columns ? at - columns : at,
        Home: event.ctrlKey ? 0 : start, End: event.ctrlKey ? items.length - 1 : end,
      }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined) return;
      event.preventDefault();
      focus(to);
    });
  }

  // Tables that sort by a column: numbers by data-value, other cells as words; cells without a value last.
  for (const heading of document.querySelectorAll("th button")) {
    const head = heading.parentNode, body = head.closest("table").tBodies[0];
    heading.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[head.cellIndex];
      const missing = (cell) => cell.dataset.value === "";
      const compare = (a, b) => a.dataset.value !== undefined
        ? Number(a.dataset.value) - Number(b.dataset.value) : a.textContent.localeCompare(b.textContent);
      const rows = [...body.rows].sort((a, b) =>
        missing(key(a)) - missing(key(b)) || (down ? -1 : 1) * compare(key(a), key(b)));
      body.append(...rows);
    });
  }

  // Paper shows what is folded away.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
})();
