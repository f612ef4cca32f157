// Copies arguments and, if the person has chosen this, shows times in the person's time zone and adds keyboard shortcuts. Everything else
// works without this script.
(() => {
  "use strict";

  const shown = new WeakMap();
  const two = (number) => String(number).padStart(2, "0");
  const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;

  // A refresh writes the time in UTC again, so each text that is not ours is replaced.
  function localize(time) {
    const text = time.textContent;
    if (shown.get(time) === text) return;
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    const isWhole = text.endsWith(" UTC");
    time.title = `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
    time.textContent = isWhole || day(at) !== day(new Date()) ? `${day(at)} ${clock}` : clock;
    shown.set(time, time.textContent);
  }

  if (document.documentElement.dataset.times === "local") {
    const all = () => document.querySelectorAll("time[datetime]").forEach(localize);
    all();
    new MutationObserver(all).observe(document.body, {childList: true, characterData: true, subtree: true});
    const zone = document.getElementById("zone");
    if (zone) zone.textContent = `Times are in ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;
  }

  // Browsers allow access to the clipboard only to pages that use HTTPS or come from this machine.
  if (navigator.clipboard) document.documentElement.dataset.copies = "on";
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const text = button.closest("section").querySelector("pre").textContent;
    button.textContent = await navigator.clipboard.writeText(text).then(() => "Copied", () => "Not allowed");
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });

  const help = document.getElementById("keys");
  if (!help) return;
  help.hidden = false;
  let isGoing = false;

  function move(by) {
    const rows = [...document.querySelectorAll("#page tbody th a")];
    if (!rows.length) return;
    const now = rows.indexOf(document.activeElement);
    rows[now < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, now + by))].focus();
  }

  function find() {
    const field = document.querySelector("#page [role=search] input, #page details.card form[method=get] input:not([type=hidden])");
    if (!field) return;
    const around = field.closest("details");
    if (around) around.open = true;
    field.focus();
  }

  const keys = {
    "/": find,
    j: () => move(1),
    k: () => move(-1),
    x: () => document.activeElement.closest("tr")?.querySelector("input[type=checkbox]")?.click(),
    r: () => document.getElementById("now")?.click(),
    g: () => { isGoing = true; },
  };
  document.addEventListener("keydown", (event) => {
    const wasGoing = isGoing;
    isGoing = false;
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    if (event.target.closest("input, select, textarea, [contenteditable]")) return;
    const place = "1234567890".indexOf(event.key); // 0 is the key for the tenth page
    const page = wasGoing && event.key.length === 1 && document.querySelectorAll(".top nav.pages a")[place];
    if (page) page.click();
    else if (Object.hasOwn(keys, event.key)) keys[event.key]();
    else return;
    event.preventDefault();
  });
})();
