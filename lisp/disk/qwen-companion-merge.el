;;; qwen-companion-merge.el --- Compare, merge and change texts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The Python process compares and merges texts while Emacs continues; it
;; returns small edits, which are applied to a buffer as one undo step.  Point,
;; markers and overlays stay with their words.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-messages)
(require 'qwen-companion-spool)

(cl-defstruct (qwen-companion-merge-result (:copier nil))
  "The edits that turn one text into another.
EDITS is a vector of four integers for each edit: FROM and TO in the old
text, NEW-FROM and NEW-TO in the new one.  These are offsets in characters
from 0; the edits are in order and do not overlap.  TEXT is the new text,
or nil for \"theirs\"; CONFLICTS is the number of conflicts marked in it."
  edits text (conflicts 0))

(defconst qwen-companion-merge--size-limit 50000000
  "Bytes above which a text is neither compared nor merged.")

;;; Requests

(defun qwen-companion-merge-compare (old new callback)
  "Compare the texts of the buffers OLD and NEW; return at once.
CALLBACK gets a list of hunks (OLD-LINE OLD-COUNT NEW-LINE NEW-COUNT):
OLD-COUNT lines from OLD-LINE on in OLD became NEW-COUNT lines in NEW.  Lines
count from 1 and end only at a line feed, which the last may lack.  With a
count of 0, the line is the next one.  nil means that the texts are equal,
`failed' that they could not be compared, for instance because one of them
is not Unicode."
  (qwen-companion-merge--ask
   'compare (list :old old :new new) nil
   #'qwen-companion-merge--read-hunks 'failed callback))

(defun qwen-companion-merge-texts (base mine theirs labels callback)
  "Merge the differences between BASE and THEIRS into MINE; return at once.
Each is a buffer or a string.  With BASE nil, MINE is the base, so that
the result is THEIRS.  LABELS is a list (MINE BASE THEIRS) of labels of
the texts in a conflict, one line each.  With LABELS nil, merge by
characters instead of lines; a conflict is then a failure.  Change no
buffer.  Call CALLBACK with a `qwen-companion-merge-result', or nil on
failure."
  (qwen-companion-merge--ask
   'merge (append (and base (list :base base)) (list :mine mine :theirs theirs))
   (list :labels labels)
   #'qwen-companion-merge--read-result nil callback))

(defun qwen-companion-merge--ask (method texts more reader failure callback)
  "Call METHOD with TEXTS, a property list, and with the payload MORE.
CALLBACK gets the value of READER for the answer, or FAILURE."
  (let* ((packed nil)
         (finish (lambda (payload)
                   (mapc #'qwen-companion-spool-drop packed)
                   (funcall callback
                            (condition-case nil
                                (if payload (funcall reader payload) failure)
                              (file-error failure)))))
         (texts (and (qwen-companion-backend-connected-p)
                     ;; The disk may be full.
                     (ignore-error file-error
                       (cl-loop for (key text) on texts by #'cddr
                                for one = (qwen-companion-merge--pack-one text)
                                unless one return nil
                                do (push one packed)
                                append (list key one))))))
    (qwen-companion-backend-request method (and texts (append texts more)) finish)))

(defun qwen-companion-merge--pack-one (text)
  "Return TEXT, a buffer or string, as part of a payload.
The value is nil when it is too large or not all Unicode."
  (if (stringp text)
      (with-temp-buffer
        (insert text)
        (qwen-companion-merge--pack-one (current-buffer)))
    (with-current-buffer text
      (save-restriction
        (widen)
        (and (< (position-bytes (point-max)) qwen-companion-merge--size-limit)
             (qwen-companion-buffers-unicode-p)
             (qwen-companion-spool-pack-buffer))))))

;;; Answers

(defun qwen-companion-merge-on-compared (payload)
  "Handle the `compared' message PAYLOAD: call the callback of its request."
  (unless (qwen-companion-backend-answer (qwen-companion-compared-id payload) payload)
    (qwen-companion-spool-drop (qwen-companion-compared-hunks payload)))
  nil)

(defun qwen-companion-merge-on-merged (payload)
  "Handle the `merged' message PAYLOAD: call the callback of its request."
  (unless (qwen-companion-backend-answer (qwen-companion-merged-id payload) payload)
    (qwen-companion-spool-drop (qwen-companion-merged-edits payload))
    (qwen-companion-spool-drop (qwen-companion-merged-result payload)))
  nil)

(defun qwen-companion-merge--read-hunks (payload)
  "Return the list of hunks in PAYLOAD, or `failed'."
  (if-let* ((hunks (qwen-companion-compared-hunks payload)))
      (seq-partition (append (qwen-companion-spool-numbers hunks) nil) 4)
    'failed))

(defun qwen-companion-merge--read-result (payload)
  "Return the `qwen-companion-merge-result' in PAYLOAD, nil if it failed."
  (when-let* ((edits (qwen-companion-merged-edits payload)))
    (let ((text (qwen-companion-merged-result payload)))
      (make-qwen-companion-merge-result
       :edits (qwen-companion-spool-numbers edits)
       :text (and text (qwen-companion-spool-text text))
       :conflicts (qwen-companion-merged-conflicts payload)))))

;;; Applying

(defconst qwen-companion-merge--single-changes 100
  "Most edits for which the change hooks run one by one.
For more, they run once for the range from the first to the last.")

(defun qwen-companion-merge-apply (merged theirs)
  "Change the text of the current buffer by the edits of MERGED.
The buffer contains \"mine\", and THEIRS is the buffer or string with
\"theirs\", both unchanged since the request.  All edits are one undo
step.  Point, the points and starts of windows, markers, overlays and
narrowing stay with their text.  Ask no question even if the buffer or its
text is read-only or the file has changed on disk.  The caller sets
whether the buffer is modified."
  (let ((edits (qwen-companion-merge-result-edits merged))
        (source (or (qwen-companion-merge-result-text merged) theirs))
        (target (current-buffer)))
    (unless (zerop (length edits))
      (with-temp-buffer
        (when (stringp source)
          (insert source)
          (setq source (current-buffer)))
        (with-current-buffer source
          (save-restriction
            (widen)
            (with-current-buffer target
              (qwen-companion-merge--apply edits source))))))))

(defun qwen-companion-merge--apply (edits source)
  "Apply EDITS, at least one; SOURCE is a widened buffer with the new text."
  (let ((point (point))
        (narrowing (and (buffer-narrowed-p) (list (point-min) (point-max))))
        (windows (mapcar (lambda (window)
                           (list window (window-point window) (window-start window)))
                         (get-buffer-window-list nil nil t)))
        deactivate-mark
        done)
    (widen)
    (unwind-protect
        (progn
          (qwen-companion-merge--change edits source)
          (setq done t))
      (pcase narrowing
        (`(,start ,end)
         (if done
             (narrow-to-region (qwen-companion-merge--new-position edits start)
                               (qwen-companion-merge--new-position edits end t))
           (narrow-to-region start end)))))
    (goto-char (qwen-companion-merge--new-position edits point))
    (pcase-dolist (`(,window ,point ,start) windows)
      (set-window-point window (qwen-companion-merge--new-position edits point))
      (set-window-start window (qwen-companion-merge--new-position edits start) t))))

(defun qwen-companion-merge--change (edits source)
  "Apply EDITS to the whole buffer as one undo step, all or none of them.
SOURCE is a buffer with the new text."
  (let ((inhibit-read-only t)
        ;; Lock nothing, and ask nothing about the file: Emacs asks if it sees
        ;; a true name.
        (buffer-file-truename nil))
    (undo-boundary)
    ;; Undo keeps the objects made here.
    (qwen-companion-buffers-without-collecting
      (atomic-change-group
        ;; Undoing restores the current position of point; and with an empty
        ;; list `combine-change-calls' fails.
        (push (point) buffer-undo-list)
        (if (<= (/ (length edits) 4) qwen-companion-merge--single-changes)
            (qwen-companion-merge--replace edits source)
          (combine-change-calls
              ;; The first edit may begin one character earlier, see below.
              (max 1 (aref edits 0))
              (1+ (aref edits (- (length edits) 3)))
            (qwen-companion-merge--replace edits source)))))
    (undo-boundary)))

(defun qwen-companion-merge--replace (edits source)
  "Apply EDITS, the last one first; SOURCE is a buffer with the new text.
Insert new text before deleting the old one: markers after it stay behind
it, and overlays on it are never empty."
  (pcase-let ((`(,starts ,ends) (qwen-companion-merge--overlay-bounds)))
    (cl-loop
     for index from (- (length edits) 4) downto 0 by 4
     for from = (1+ (aref edits index))
     for to = (1+ (aref edits (+ index 1)))
     for new-from = (1+ (aref edits (+ index 2)))
     for new-to = (1+ (aref edits (+ index 3)))
     for previous = (if (= index 0) 0 (1+ (aref edits (- index 3))))
     do
     (cond
      ((< from to)
       ;; At the bounds of an overlay, insert inside it.
       (let ((inside (if (and (< 1 (- to from))
                              (or (gethash from starts) (gethash from ends)))
                         1 0)))
         (goto-char (+ from inside))
         (insert-buffer-substring-no-properties source new-from new-to)
         (delete-region (point) (+ to (- new-to new-from)))
         (when (= inside 1)
           (delete-region from (1+ from)))))
      ((not (and (< previous from)
                 (eq ?\n (char-before from))
                 (eq ?\n (with-current-buffer source (char-before new-to)))))
       (goto-char from)
       (insert-buffer-substring-no-properties source new-from new-to))
      ;; Insert lines before a line at the end of the previous one, so that a
      ;; marker at the beginning of the line stays with it.
      ((not (or (gethash (1- from) starts) (gethash from ends)))
       (goto-char (1- from))
       (insert-buffer-substring-no-properties source (1- new-from) (1- new-to)))
      ;; But not if that would move them out of an overlay, such as a fold, or
      ;; into one.
      (t
       (goto-char from)
       (insert-buffer-substring-no-properties source new-from new-to)
       (dolist (overlay (gethash from starts))
         (when (< (point) (overlay-end overlay))
           (move-overlay overlay (point) (overlay-end overlay)))))))))

(defun qwen-companion-merge--overlay-bounds ()
  "Return two hash tables: the overlays by their beginnings, and by their ends."
  (let ((starts (make-hash-table))
        (ends (make-hash-table)))
    (dolist (overlay (overlays-in (point-min) (point-max)))
      (push overlay (gethash (overlay-start overlay) starts))
      (push overlay (gethash (overlay-end overlay) ends)))
    (list starts ends)))

(defun qwen-companion-merge--new-position (edits position &optional before)
  "Return the new position of POSITION after EDITS were applied.
At inserted lines, it is behind these, or with BEFORE non-nil before them."
  (let ((offset (1- position))
        (low 0)
        (high (/ (length edits) 4)))
    ;; The number of edits that begin here or earlier.
    (while (< low high)
      (let ((middle (/ (+ low high) 2)))
        (if (<= (aref edits (* 4 middle)) offset)
            (setq low (1+ middle))
          (setq high middle))))
    (if (= low 0)
        position
      (pcase-let ((`(,from ,to ,new-from ,new-to)
                   (append (seq-subseq edits (* 4 (1- low)) (* 4 low)) nil)))
        (1+ (cond ((> offset to) (+ new-to (- offset to)))
                  ((= from to)
                   (if (or before (not (eq ?\n (char-before (1+ new-to)))))
                       new-from
                     new-to))
                  ((= offset to) new-to)
                  (t (min (+ new-from (- offset from)) new-to))))))))

(provide 'qwen-companion-merge)
;;; qwen-companion-merge.el ends here
