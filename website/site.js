// Correct what the theme's script adds to a page: a wide table can be scrolled with the keyboard, and a "copy" button is not a landmark.
function correct() {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    if (wrap.scrollWidth > wrap.clientWidth) wrap.tabIndex = 0;
  }
  for (const bar of document.querySelectorAll(".md-code__nav:not([role])")) bar.setAttribute("role", "none");
}
new MutationObserver(correct).observe(document.documentElement, { childList: true, subtree: true });
addEventListener("resize", correct);
