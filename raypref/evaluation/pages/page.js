"use strict";
(() => {
  const root = document.documentElement;
  const themes = ["", "light", "dark"];
  const words = ["Colours: as the system has them", "Colours: light", "Colours: dark"];
  const button = document.getElementById("theme");
  let theme = 0;
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = (theme + 1) % themes.length;
    root.dataset.theme = themes[theme];
    button.textContent = words[theme];
  });

  async function script() {
    const packed = Uint8Array.from(atob(document.getElementById("vega").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  async function draw() {
    const specs = JSON.parse(document.getElementById("specs").textContent);
    if (!specs.length) return;
    new Function(await script())();
    const places = document.querySelectorAll("figure > .drawing");
    const how = { renderer: "svg", actions: false, tooltip: { theme: "custom" } };
    for (let i = 0; i < specs.length; i++) {
      places[i].textContent = "";
      await window.vegaEmbed(places[i], specs[i], how);
    }
  }

  draw().then(() => { root.dataset.drawn = "all"; }, (error) => { root.dataset.drawn = "failed"; throw error; });
})();
