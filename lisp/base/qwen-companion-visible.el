;;; qwen-companion-visible.el --- Update a buffer that a window shows  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A list of running things has ages in it, which change by themselves.  It is
;; updated by a timer that runs only while the list is in a window.
;;
;; A buffer made of items, each with a key that outlives a redraw, can be
;; redrawn in such a way that point, the mark and the windows stay at their
;; items.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(defvar-local qwen-companion-visible--function nil
  "Function that updates the current buffer.")
(defvar-local qwen-companion-visible--seconds nil
  "Seconds between two updates of the current buffer.")
(defvar-local qwen-companion-visible--timer nil
  "Timer that updates the current buffer, nil while it is not visible.")

(defun qwen-companion-visible-keep-updated (function seconds)
  "Call FUNCTION in the current buffer while it is in a window.
It is called without arguments when a window begins to show the buffer,
and every SECONDS from then on.  To be called by a major mode."
  (setq qwen-companion-visible--function function
        qwen-companion-visible--seconds seconds)
  (add-hook 'window-buffer-change-functions #'qwen-companion-visible--shown nil t)
  (add-hook 'change-major-mode-hook #'qwen-companion-visible--stop nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-visible--stop nil t))

(defun qwen-companion-visible-window ()
  "Return a window of the current buffer, or nil.
That of an iconified frame counts: nothing is run when it comes back."
  (get-buffer-window (current-buffer) 0))

(defun qwen-companion-visible-update ()
  "Update the current buffer now if it is in a window, else stop doing so."
  (if (not (qwen-companion-visible-window))
      (qwen-companion-visible--stop)
    (unless qwen-companion-visible--timer
      (setq qwen-companion-visible--timer
            (run-at-time qwen-companion-visible--seconds
                         qwen-companion-visible--seconds
                         #'qwen-companion-visible--tick (current-buffer))))
    (funcall qwen-companion-visible--function)))

(defun qwen-companion-visible-revert ()
  "Revert the current buffer in its window, where point stays on its line."
  (with-selected-window (qwen-companion-visible-window)
    (revert-buffer)))

(defun qwen-companion-visible--shown (window)
  "Update the buffer of WINDOW, which has begun to show it."
  (qwen-companion-visible--tick (window-buffer window)))

(defun qwen-companion-visible--tick (buffer)
  "Update BUFFER if it is alive."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (qwen-companion-visible-update))))

(defun qwen-companion-visible--stop ()
  "Stop the timer of the current buffer."
  (when qwen-companion-visible--timer
    (cancel-timer qwen-companion-visible--timer)
    (setq qwen-companion-visible--timer nil)))

;;; Redrawing

(defun qwen-companion-visible-redraw (items function)
  "Call FUNCTION, which redraws the current buffer, and keep all places.
ITEMS is a function that returns the items in the buffer in order, each
\(KEY START . END).  It is called before and after FUNCTION.  Point, the
mark and the windows stay at the lines and columns of their items, or
near to where an item was that has gone."
  (let* ((before (funcall items))
         (place (lambda (position)
                  (qwen-companion-visible--place position before)))
         (point (funcall place (point)))
         (mark (and (mark t) (funcall place (mark t))))
         (windows (mapcar (lambda (window)
                            (list window
                                  (funcall place (window-point window))
                                  ;; The top stays the top.
                                  (and (< (point-min) (window-start window))
                                       (funcall place (window-start window)))))
                          (get-buffer-window-list nil nil t))))
    (funcall function)
    (let* ((after (funcall items))
           (position (lambda (place)
                       (qwen-companion-visible--position place before after))))
      (goto-char (funcall position point))
      (when mark
        (set-marker (mark-marker) (funcall position mark)))
      (pcase-dolist (`(,window ,point ,start) windows)
        (set-window-point window (funcall position point))
        (set-window-start window (funcall position start) t)))))

(defun qwen-companion-visible--place (position items)
  "Return the place of POSITION among ITEMS as (KEY LINES COLUMN), or nil."
  (when-let* ((item (or (cl-find-if (lambda (item) (< position (cddr item))) items)
                        (car (last items)))))
    (save-excursion
      (goto-char position)
      (list (car item)
            (count-lines (cadr item) (line-beginning-position))
            (current-column)))))

(defun qwen-companion-visible--position (place before after)
  "Return the position of PLACE among the items AFTER; that of nil is the top.
If its item has gone, that is the nearest one that was among BEFORE."
  (pcase-let* ((`(,key ,lines ,column) place)
               (`(,_ ,start . ,end) (assoc key after)))
    (cond
     ((null key) (point-min))
     (start
      (save-excursion
        (goto-char start)
        (forward-line lines)
        (when (>= (point) end)
          (goto-char (max start (1- end)))
          (forward-line 0))
        (move-to-column column)
        (point)))
     (t
      (let* ((keys (mapcar #'car before))
             (rest (member key keys)))
        (or (cl-some (lambda (key) (cadr (assoc key after)))
                     (append (reverse (butlast keys (length rest))) rest))
            (point-min)))))))

(provide 'qwen-companion-visible)
;;; qwen-companion-visible.el ends here
