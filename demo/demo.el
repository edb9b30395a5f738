;;; demo.el --- The windows of the demo  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Loaded by demo/demo.py after scripts/checkout.el: turns the mode on, shows
;; a file and the CLI below it, and the guide: beside both where there is
;; room, else in a frame of its own, to which a key goes from everywhere.
;; For demo/screenshots.py also a file with room for a chat.

;;; Code:

(defvar org-hidden-keywords)
(defvar org-hide-emphasis-markers)
(defvar qwen-companion-daemon-enabled)
(defvar tab-bar-format)
(defvar term-raw-map)
(declare-function qwen-companion-mode "qwen-companion" (&optional arg))
(declare-function qwen-companion-run "qwen-companion" (directory &optional another))

(defconst demo--guide-width 64
  "Columns of the guide beside the other windows.")

(defconst demo--least-size '(200 . 45)
  "Columns and lines of a frame with room for a review and the guide beside it.")

(defconst demo--chat-width 100
  "Columns of the chat beside a file.")

(defvar demo--frames nil
  "The frame of the file and the CLI, and that of the guide: (MAIN . GUIDE).")

(defun demo--guide-buffer (guide)
  "Return a buffer with the text of the file GUIDE.
It visits no file: the guide is none of the files one works on."
  (with-current-buffer (get-buffer-create "*guide*")
    (insert-file-contents guide)
    (set-buffer-modified-p nil)
    (org-mode)
    (visual-line-mode 1)
    ;; Some keys leave View mode.
    (setq buffer-read-only t)
    (view-mode 1)
    (current-buffer)))

(defun demo-guide ()
  "Go to the guide, or from there back to the file and the CLI."
  (interactive)
  (pcase-let* ((`(,main . ,guide) demo--frames)
               (frame (if (eq (selected-frame) guide) main guide)))
    (unless (frame-live-p frame)
      (user-error "The other frame was deleted"))
    (make-frame-visible frame)
    (select-frame-set-input-focus frame)))

(defun demo--return (events)
  "Go back to the guide, unless there was input after so many EVENTS."
  (when (= events num-nonmacro-input-events)
    (select-frame-set-input-focus (cdr demo--frames))))

(defun demo--hint ()
  "Return the line at the top of the selected frame, for `tab-bar-format'."
  (if (eq (selected-frame) (cdr demo--frames))
      " F5: back to the file and the CLI    C-x C-c: end the demo"
    " F5: the guide    C-x o: other window    C-x C-c: end the demo"))

(defun demo--show-guide-beside (buffer)
  "Show BUFFER, the guide, at the right of the selected frame.
A review leaves side windows in place."
  (set-window-parameter
   (display-buffer-in-side-window
    buffer `((side . right)
             (window-width . ,demo--guide-width)
             (window-parameters (no-delete-other-windows . t))))
   ;; C-x o goes between the file and the terminal.
   'no-other-window t))

(defun demo--show-guide-behind-key (buffer)
  "Show BUFFER, the guide, in a frame of its own, and how to come and go."
  (menu-bar-mode -1)
  (setq tab-bar-format '(demo--hint))
  (tab-bar-mode 1)
  ;; The key must work in terminals too, whose own maps take all keys.
  (let ((map (make-sparse-keymap)))
    (define-key map [f5] #'demo-guide)
    (push `((demo--frames . ,map)) emulation-mode-map-alists))
  (setq demo--frames (cons (selected-frame) (make-frame)))
  (with-selected-frame (cdr demo--frames)
    (switch-to-buffer buffer)
    (set-window-dedicated-p nil t))
  (demo-guide))

(defun demo--show-cli (buffer alist)
  "Show BUFFER, the terminal of the CLI, below the file; ALIST as usual.
The CLI comes up seconds after the start: whoever reads the guide in a
frame of its own goes on reading."
  (if (not (eq (selected-frame) (cdr demo--frames)))
      (display-buffer-below-selected buffer alist)
    (run-at-time 0 nil #'demo--return num-nonmacro-input-events)
    (with-selected-frame (car demo--frames)
      (display-buffer-below-selected buffer alist))))

(defun demo-start (file &optional guide)
  "Visit FILE with the mode on, start the CLI, and show the text of GUIDE, if any."
  (setq org-hide-emphasis-markers t
        org-hidden-keywords '(title)
        ;; The CLI needs no farewell.
        confirm-kill-processes nil
        display-buffer-alist '(("\\`\\*qwen: " demo--show-cli)))
  ;; The CLI's sign of a mode, which few fonts have.
  (unless (char-displayable-p ?\u23f8)
    (unless standard-display-table
      (setq standard-display-table (make-display-table)))
    (aset standard-display-table ?\u23f8 [?\u2016]))
  ;; Emacs's own terminal, taken where vterm is missing, has C-x on C-c only.
  (with-eval-after-load 'term
    (define-key term-raw-map (kbd "C-x") ctl-x-map))
  (find-file file)
  (qwen-companion-mode 1)
  (qwen-companion-run (file-name-directory file))
  (when guide
    (let ((buffer (demo--guide-buffer guide)))
      (if (and (>= (frame-width) (car demo--least-size))
               (>= (frame-height) (cdr demo--least-size)))
          (demo--show-guide-beside buffer)
        (demo--show-guide-behind-key buffer)))))

(defun demo-start-chat (file)
  "Visit FILE with the mode on, and leave a window beside it for a chat."
  (setq confirm-kill-processes nil
        qwen-companion-daemon-enabled t)
  (find-file file)
  (select-window (split-window-right (- demo--chat-width)))
  (qwen-companion-mode 1))

(provide 'demo)
;;; demo.el ends here
