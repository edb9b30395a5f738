;;; qwen-companion-changes-signs.el --- Mark what agents changed in its files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; In a buffer that visits a file, unseen lines by agents have a sign in the
;; fringe, or in the margin if there is no fringe.  The journal has the line
;; numbers on disk, so buffers with unsaved text keep their signs.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-changes-items)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-timers)

(defcustom qwen-companion-changes-signs t
  "Whether lines that agents have written are marked in their files.
Only lines that you have not marked as seen have signs, see
`qwen-companion-changes'.  The signs are in the left fringe, or in the left
margin if there is no fringe."
  :group 'qwen-companion
  :type 'boolean
  :set (lambda (symbol value)
         (set-default symbol value)
         (when (fboundp 'qwen-companion-changes-signs-update)
           (qwen-companion-changes-signs-update))))

(defface qwen-companion-changes-sign
  '((t :inherit success))
  "Face of the sign of a line that an agent has written.
Where diff-hl is loaded, its faces are used."
  :group 'qwen-companion)

(defface qwen-companion-changes-sign-deleted
  '((t :inherit error))
  "Face of the sign where an agent has deleted lines.
Where diff-hl is loaded, its faces are used."
  :group 'qwen-companion)

(defconst qwen-companion-changes-signs--delay 0.2
  "Seconds in which changes are collected before signs are updated.")

(defconst qwen-companion-changes-signs--limit 2000
  "Maximum number of lines of a buffer with signs.")

(define-fringe-bitmap 'qwen-companion-changes-sign [#b11110000] nil nil '(center t))
(define-fringe-bitmap 'qwen-companion-changes-sign-deleted
  [#b00000000 #b11111111 #b01111110 #b00111100 #b00011000] nil nil 'top)

(defvar qwen-companion-changes-signs--on nil
  "Non-nil while the mode is on.")

(defvar qwen-companion-changes-signs--queue nil
  "Buffers whose signs wait for an update.")

(defvar qwen-companion-changes-signs--timer nil
  "Timer that updates them, or nil.")

(defvar-local qwen-companion-changes-signs--margin nil
  "Non-nil when the left margin of this buffer has a column for signs.")

;;; Which lines

(defun qwen-companion-changes-signs-unseen (path)
  "Return the id of each unseen agent turn that changed PATH, newest first."
  (cl-loop for turn in (qwen-companion-journal-turns-of path)
           for file = (qwen-companion-journal-file turn path)
           when (and (eq 'agent (qwen-companion-turn-who turn))
                     (not (qwen-companion-changed-file-seen file)))
           collect (qwen-companion-turn-id turn)))

(defun qwen-companion-changes-signs-path (buffer)
  "Return the true name of the file that BUFFER visits, or nil."
  (when-let* ((file (buffer-file-name (or (buffer-base-buffer buffer) buffer))))
    (unless (qwen-companion-places-remote-p file)
      (expand-file-name (buffer-local-value 'buffer-file-truename
                                            (or (buffer-base-buffer buffer) buffer))
                        "/"))))

(defun qwen-companion-changes-signs--enqueue (buffer)
  "Update the signs of BUFFER soon."
  (cl-pushnew buffer qwen-companion-changes-signs--queue)
  (unless qwen-companion-changes-signs--timer
    (setq qwen-companion-changes-signs--timer
          (run-at-time qwen-companion-changes-signs--delay nil
                       #'qwen-companion-changes-signs--work))))

(defun qwen-companion-changes-signs--work ()
  "Update the signs of the buffers that wait for it."
  (setq qwen-companion-changes-signs--timer nil)
  (dolist (buffer (cl-shiftf qwen-companion-changes-signs--queue nil))
    (qwen-companion-buffers-when-live buffer
      (qwen-companion-changes-signs--request))))

(defun qwen-companion-changes-signs--request ()
  "Request the lines of the current buffer to mark, or remove all signs."
  (let ((path (qwen-companion-changes-signs-path (current-buffer)))
        (buffer (current-buffer)))
    (cond
     ((not (and path (qwen-companion-changes-signs-unseen path)))
      (qwen-companion-changes-signs--show nil))
     ((not (buffer-modified-p))
      (qwen-companion-journal-ask
       'journal-spans (list :path path)
       (lambda (reply)
         (when (and (buffer-live-p buffer)
                    (not (qwen-companion-journal-reply-error reply)))
           (with-current-buffer buffer
             (unless (buffer-modified-p)
               (qwen-companion-changes-signs--show
                (and qwen-companion-changes-signs--on
                     qwen-companion-changes-signs
                     (qwen-companion-journal-reply-spans reply))))))))))))

;;; Showing

(defun qwen-companion-changes-signs--show (spans)
  "Mark SPANS in the current buffer and nothing else.
Each is (LINE COUNT TURN SEEN); a COUNT of 0 means that lines were deleted
before LINE.  Spans that are SEEN are not marked."
  (when spans
    ;; The mouse over a sign does not wait for them.
    (qwen-companion-journal-fetch-prompts (mapcar #'caddr spans) #'ignore))
  (save-restriction
    (widen)
    (remove-overlays nil nil 'qwen-companion-changes-sign t)
    (let ((left qwen-companion-changes-signs--limit)
          (at 1))
      (save-excursion
        (goto-char (point-min))
        (pcase-dolist (`(,line ,count ,turn ,seen)
                       (sort (copy-sequence spans)
                             (lambda (a b) (< (car a) (car b)))))
          (unless seen
            (forward-line (- line at))
            (setq at line)
            (if (= count 0)
                (qwen-companion-changes-signs--mark turn t)
              (dotimes (_ (min count left))
                (qwen-companion-changes-signs--mark turn nil)
                (forward-line 1)
                (cl-incf at)
                (cl-decf left)))))))
    (qwen-companion-changes-signs--show-margin
     (cl-some (lambda (overlay) (overlay-get overlay 'qwen-companion-changes-sign))
              (overlays-in (point-min) (point-max))))))

(defun qwen-companion-changes-signs--mark (turn deleted)
  "Mark the line at point as written by TURN; with DELETED, lines deleted above it."
  (let ((overlay (make-overlay (point) (point)))
        (face (cond ((and deleted (facep 'diff-hl-delete)) 'diff-hl-delete)
                    (deleted 'qwen-companion-changes-sign-deleted)
                    ((facep 'diff-hl-insert) 'diff-hl-insert)
                    (t 'qwen-companion-changes-sign))))
    (overlay-put overlay 'qwen-companion-changes-sign t)
    (overlay-put overlay 'qwen-companion-changes-turn turn)
    (overlay-put overlay 'before-string
                 (propertize
                  " "
                  'help-echo (lambda (&rest _) (qwen-companion-changes-items-help turn))
                  'display
                  (if (display-graphic-p)
                      (list 'left-fringe
                            (if deleted 'qwen-companion-changes-sign-deleted
                              'qwen-companion-changes-sign)
                            face)
                    (list '(margin left-margin)
                          (propertize (if deleted "_" "|") 'face face)))))))

(defun qwen-companion-changes-signs--show-margin (on)
  "Make a margin for signs in the current buffer if ON is non-nil.
With nil, remove the one that was made.  Frames with a fringe need none."
  (cond
   ((and on (not (display-graphic-p)) (zerop (or left-margin-width 0)))
    (setq qwen-companion-changes-signs--margin t)
    (qwen-companion-buffers-set-left-margin 'signs 1))
   ((and (not on) qwen-companion-changes-signs--margin)
    (setq qwen-companion-changes-signs--margin nil)
    (qwen-companion-buffers-set-left-margin 'signs 0))))

(defun qwen-companion-changes-signs-positions ()
  "Return the signs of the current buffer, in order: a list of (POSITION . TURN).
A run of marked lines has one element."
  (let (places last)
    (dolist (overlay (sort (cl-remove-if-not
                            (lambda (overlay)
                              (overlay-get overlay 'qwen-companion-changes-sign))
                            (save-restriction
                              (widen)
                              (overlays-in (point-min) (point-max))))
                           (lambda (a b) (< (overlay-start a) (overlay-start b)))))
      (let ((start (overlay-start overlay)))
        (unless (and last
                     (= start (save-excursion (goto-char last)
                                              (line-beginning-position 2))))
          (push (cons start (overlay-get overlay 'qwen-companion-changes-turn)) places))
        (setq last start)))
    (nreverse places)))

;;; On and off

(defun qwen-companion-changes-signs--visited ()
  "Record that the current buffer has the contents of its file."
  (when-let* ((path (qwen-companion-changes-signs-path (current-buffer))))
    (when (or (qwen-companion-changes-signs-unseen path)
              (qwen-companion-changes-signs-positions))
      (qwen-companion-changes-signs--enqueue (current-buffer)))))

(defun qwen-companion-changes-signs--changed (paths)
  "Update the signs of the buffers that visit PATHS, or of all if that is t."
  (dolist (buffer (buffer-list))
    (when-let* ((path (qwen-companion-changes-signs-path buffer)))
      (when (or (eq paths t) (member path paths))
        (qwen-companion-changes-signs--enqueue buffer)))))

(defconst qwen-companion-changes-signs--hooks
  '((find-file-hook . qwen-companion-changes-signs--visited)
    (after-save-hook . qwen-companion-changes-signs--visited)
    (after-revert-hook . qwen-companion-changes-signs--visited)
    (qwen-companion-journal-changed-functions . qwen-companion-changes-signs--changed))
  "The hooks in use while signs are shown: (HOOK . FUNCTION).")

(defun qwen-companion-changes-signs-update ()
  "Show or remove signs, depending on the option and the mode."
  (let ((on (and qwen-companion-changes-signs--on qwen-companion-changes-signs)))
    (qwen-companion-buffers-set-hooks qwen-companion-changes-signs--hooks on)
    (qwen-companion-journal-watch 'signs on)
    (if on
        (qwen-companion-changes-signs--changed t)
      (qwen-companion-timers-cancel qwen-companion-changes-signs--timer)
      (setq qwen-companion-changes-signs--queue nil)
      (dolist (buffer (buffer-list))
        (when (buffer-file-name buffer)
          (with-current-buffer buffer
            (qwen-companion-changes-signs--show nil)))))))

(defun qwen-companion-changes-signs-enable ()
  "Start marking lines that agents have written."
  (setq qwen-companion-changes-signs--on t)
  (qwen-companion-changes-signs-update))

(defun qwen-companion-changes-signs-disable ()
  "Remove all signs."
  (setq qwen-companion-changes-signs--on nil)
  (qwen-companion-changes-signs-update))

(provide 'qwen-companion-changes-signs)
;;; qwen-companion-changes-signs.el ends here
