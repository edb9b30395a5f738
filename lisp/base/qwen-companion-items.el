;;; qwen-companion-items.el --- Live buffers made of keyed items  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The buffer consists of items, each with a key that stays the same.  An
;; update replaces only changed items, so that point, the mark and the windows
;; stay in place.  Folded text is not in the buffer.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(defvar-local qwen-companion-items-toggled nil
  "Keys of the items that the user has folded or unfolded.")
(defvar-local qwen-companion-items--shown nil
  "The items in the buffer in order: (KEY SIGNATURE . MARKER).")

;;; Finding

(defun qwen-companion-items-bounds ()
  "Return the items in the buffer in order, each (KEY START . END)."
  (cl-loop for ((key _ . marker) next) on qwen-companion-items--shown
           collect (cons key (cons (marker-position marker)
                                   (if next (marker-position (cddr next)) (point-max))))))

(defun qwen-companion-items-key-at (position)
  "Return the key of the item at POSITION, or nil."
  (let (found)
    (cl-loop for (key _ . marker) in qwen-companion-items--shown
             while (<= marker position)
             do (setq found key))
    found))

(defun qwen-companion-items-start (key)
  "Return the position at which the item KEY begins, nil if it is not shown."
  (when-let* ((item (assoc key qwen-companion-items--shown)))
    (marker-position (cddr item))))

(defun qwen-companion-items-signature (key)
  "Return the signature of the item KEY as it is drawn, or nil."
  (cadr (assoc key qwen-companion-items--shown)))

(defun qwen-companion-items-toggle (key)
  "Fold or unfold the item KEY, and go to its start.
The caller must update the buffer afterwards."
  (goto-char (qwen-companion-items-start key))
  (setq qwen-companion-items-toggled
        (if (member key qwen-companion-items-toggled)
            (remove key qwen-companion-items-toggled)
          (cons key qwen-companion-items-toggled))))

;;; Updating

(defun qwen-companion-items-update (wanted &optional after)
  "Make the current buffer consist of the items WANTED.
Each is (KEY SIGNATURE . INSERT), where INSERT is a string, or a function
that inserts text at point.  Leave an item alone if KEY is shown with an
equal SIGNATURE.  Then call AFTER without arguments.  Point, the mark and
the windows stay at the same line and column of their items, or near
a removed item.

Return non-nil when something was changed."
  (unless (qwen-companion-items--current-p wanted)
    (qwen-companion-items--redraw
     (lambda ()
       (let ((inhibit-read-only t))
         (with-silent-modifications
           (qwen-companion-items--replace wanted)
           (when after
             (funcall after))))))
    t))

(defun qwen-companion-items--same-p (item old)
  "Return non-nil when the shown item OLD equals ITEM."
  (and (equal (car item) (car old))
       (equal-including-properties (cadr item) (cadr old))))

(defun qwen-companion-items--current-p (wanted)
  "Return non-nil when the current buffer has exactly the items WANTED."
  (let ((old qwen-companion-items--shown))
    (while (and wanted old (qwen-companion-items--same-p (car wanted) (car old)))
      (pop wanted)
      (pop old))
    (not (or wanted old))))

(defun qwen-companion-items--replace (wanted)
  "Replace the items of the current buffer by WANTED.
Items that stay are not touched."
  (let ((old qwen-companion-items--shown)
        (keys (make-hash-table :test #'equal))
        (new nil))
    (while (and wanted old (qwen-companion-items--same-p (car wanted) (car old)))
      (pop wanted)
      (push (pop old) new))
    (dolist (item wanted)
      (puthash (car item) t keys))
    (cl-flet ((remove-first ()
                (let ((end (if (cdr old) (cddr (cadr old)) (point-max))))
                  (delete-region (cddr (car old)) end)
                  (set-marker (cddr (pop old)) nil))))
      (pcase-dolist ((and item `(,key ,signature . ,insert)) wanted)
        (remhash key keys)
        ;; Items that are gone, or come later.
        (while (and old (not (equal key (car (car old))))
                    (or (not (gethash (car (car old)) keys))
                        (assoc key (cdr old))))
          (remove-first))
        (if (and old (qwen-companion-items--same-p item (car old)))
            (push (pop old) new)
          (when (and old (equal key (car (car old))))
            (remove-first))
          (goto-char (if old (cddr (car old)) (point-max)))
          (let ((start (point)))
            (if (stringp insert) (insert insert) (funcall insert))
            (when old
              (set-marker (cddr (car old)) (point)))
            (push (cons key (cons signature (copy-marker start))) new))))
      (while old
        (remove-first)))
    (setq qwen-companion-items--shown (nreverse new))))

;;; Positions

(defun qwen-companion-items--redraw (function)
  "Call FUNCTION, which redraws the buffer; preserve point, mark and windows."
  (let* ((before (qwen-companion-items-bounds))
         (place (lambda (position)
                  (qwen-companion-items--place position before)))
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
    (let* ((after (qwen-companion-items-bounds))
           (position (lambda (place)
                       (qwen-companion-items--position place before after))))
      (goto-char (funcall position point))
      (when mark
        (set-marker (mark-marker) (funcall position mark)))
      (pcase-dolist (`(,window ,point ,start) windows)
        (set-window-point window (funcall position point))
        (set-window-start window (funcall position start) t)))))

(defun qwen-companion-items--place (position items)
  "Return POSITION relative to its item in ITEMS, (KEY LINES COLUMN), or nil."
  (when-let* ((item (or (cl-find-if (lambda (item) (< position (cddr item))) items)
                        (car (last items)))))
    (save-excursion
      (goto-char position)
      (list (car item)
            (count-lines (cadr item) (line-beginning-position))
            (current-column)))))

(defun qwen-companion-items--position (place before after)
  "Return the buffer position of PLACE among the items AFTER; nil is the top.
If its item is gone, use the nearest one of BEFORE that is left."
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

(provide 'qwen-companion-items)
;;; qwen-companion-items.el ends here
