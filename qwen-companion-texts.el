;;; qwen-companion-texts.el --- Compare, merge and change texts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; The Python process compares and merges texts while Emacs goes on; what
;; comes back are small edits, which are applied to a buffer as one undo
;; step.  Whatever points into the buffer stays with the words it was at.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)

(cl-defstruct (qwen-companion-texts-merged (:copier nil))
  "What makes one text of another.
EDITS is a vector of four integers for each edit: FROM and TO in the
text as it is, NEW-FROM and NEW-TO in the new one.  These are offsets in
characters from 0; the edits are in order and do not overlap.
TEXT-BUFFER holds the new text, nil when that is \"theirs\".  Applying
kills it; whoever does not apply this has to.  CONFLICTS tells how many
conflicts are marked in it."
  edits text-buffer (conflicts 0))

(defconst qwen-companion-texts--size-limit 50000000
  "Bytes above which a text is neither compared nor merged.")

;;; Requests

(cl-defstruct (qwen-companion-texts--request (:copier nil))
  "A question the Python process has not answered.
CALLBACK gets the answer, FAILURE if there is none.  FILES hold the
texts until they are read.  TIMER is about to call CALLBACK with FAILURE."
  callback failure files timer)

(defvar qwen-companion-texts--requests nil
  "Alist of the questions that are not answered: (ID . REQUEST).")

(defvar qwen-companion-texts--last-id 0
  "Number of the last question.")

(defun qwen-companion-texts-compare (old new callback)
  "Compare the texts of the buffers OLD and NEW; return at once.
CALLBACK gets a list of hunks (OLD-LINE OLD-COUNT NEW-LINE NEW-COUNT):
so many lines from OLD-LINE on in OLD became those in NEW.  Lines count
from 1 and end at a line feed only; a last line may lack it.  Where a
count is 0, the line is that before which the others would be.  nil
means that the texts are equal, `failed' that they could not be
compared, for instance because one of them is not Unicode."
  (qwen-companion-texts--ask
   'compare (list :old old :new new) nil 'failed callback))

(defun qwen-companion-texts-merge (base mine theirs labels callback)
  "Put what made THEIRS of BASE into MINE; return at once.
MINE and THEIRS are buffers, BASE is a buffer or a string.  When it is
nil, MINE is the base, so that the result is THEIRS.  LABELS is a list
\(MINE BASE THEIRS) of what the texts are called in a conflict, one line
each.  No buffer is changed.  CALLBACK gets a struct
`qwen-companion-texts-merged', or nil when it could not be done."
  (qwen-companion-texts--ask
   'merge (append (and base (list :base base)) (list :mine mine :theirs theirs))
   (list :labels labels) nil callback))

(defun qwen-companion-texts--ask (method texts more failure callback)
  "Call METHOD with TEXTS, a property list, and with the payload MORE.
CALLBACK gets the answer, or FAILURE."
  (let* ((id (cl-incf qwen-companion-texts--last-id))
         (request (make-qwen-companion-texts--request
                   :callback callback :failure failure)))
    (push (cons id request) qwen-companion-texts--requests)
    (unless (and (qwen-companion-backend-connected-p)
                 (cl-loop for (_key text) on texts by #'cddr
                          always (qwen-companion-texts--fit-p text))
                 (qwen-companion-backend-call
                  method
                  (append (list :id id) more
                          (cl-loop for (key text) on texts by #'cddr
                                   for packed = (qwen-companion-texts--pack text)
                                   do (push packed (qwen-companion-texts--request-files request))
                                   append (list key packed)))))
      (qwen-companion-texts--fail request))))

(defun qwen-companion-texts--fit-p (text)
  "Return non-nil when TEXT, a buffer or string, can be handed over."
  (if (stringp text)
      (and (< (string-bytes text) qwen-companion-texts--size-limit)
           (not (unencodable-char-position 0 (length text) 'utf-8 nil text)))
    (with-current-buffer text
      (save-restriction
        (widen)
        (and (< (position-bytes (point-max)) qwen-companion-texts--size-limit)
             (not (unencodable-char-position (point-min) (point-max) 'utf-8)))))))

(defun qwen-companion-texts--pack (text)
  "Return TEXT, a buffer or string, as part of a payload."
  (if (stringp text)
      (qwen-companion-backend-pack-text text)
    (qwen-companion-backend-pack-buffer text)))

(defun qwen-companion-texts--drop (request)
  "Forget REQUEST and what belongs to it."
  (setq qwen-companion-texts--requests
        (cl-delete request qwen-companion-texts--requests :key #'cdr))
  (when-let ((timer (qwen-companion-texts--request-timer request)))
    (cancel-timer timer))
  (mapc #'qwen-companion-backend-drop-text
        (qwen-companion-texts--request-files request)))

(defun qwen-companion-texts--fail (request)
  "Tell who made REQUEST that it could not be done, soon.
Not now: this may run where the caller expects nothing of the kind."
  (unless (qwen-companion-texts--request-timer request)
    (setf (qwen-companion-texts--request-timer request)
          (run-at-time 0 nil #'qwen-companion-texts--failed request))))

(defun qwen-companion-texts--failed (request)
  "Call the callback of REQUEST: it could not be done."
  (qwen-companion-texts--drop request)
  (funcall (qwen-companion-texts--request-callback request)
           (qwen-companion-texts--request-failure request)))

(defun qwen-companion-texts-fail-all ()
  "Give up all questions: the Python process they were put to is gone."
  (mapc #'qwen-companion-texts--fail
        (mapcar #'cdr qwen-companion-texts--requests)))

(defun qwen-companion-texts-forget ()
  "Forget all questions; nobody is called."
  (mapc #'qwen-companion-texts--drop
        (mapcar #'cdr qwen-companion-texts--requests)))

;;; Answers

(defun qwen-companion-texts-on-compared (payload)
  "Hand on the hunks in PAYLOAD."
  (qwen-companion-texts--answer payload #'qwen-companion-texts--hunks '(:hunks)))

(defun qwen-companion-texts-on-merged (payload)
  "Hand on the edits in PAYLOAD."
  (qwen-companion-texts--answer payload #'qwen-companion-texts--merge '(:edits :result)))

(defun qwen-companion-texts--answer (payload reader keys)
  "Give PAYLOAD as READER reads it to who asked, unless that was forgotten.
KEYS are those in PAYLOAD that may carry a text."
  (if-let ((request (alist-get (plist-get payload :id)
                               qwen-companion-texts--requests)))
      (let ((answer (condition-case nil
                        (funcall reader payload)
                      (file-error (qwen-companion-texts--request-failure request)))))
        (qwen-companion-texts--drop request)
        (funcall (qwen-companion-texts--request-callback request) answer))
    (dolist (key keys)
      (qwen-companion-backend-drop-text (plist-get payload key))))
  nil)

(defun qwen-companion-texts--hunks (payload)
  "Return the list of hunks in PAYLOAD, or `failed'."
  (if-let ((hunks (plist-get payload :hunks)))
      (seq-partition (append (qwen-companion-texts--numbers hunks) nil) 4)
    'failed))

(defun qwen-companion-texts--merge (payload)
  "Return the `qwen-companion-texts-merged' in PAYLOAD, nil if it failed."
  (when-let ((edits (plist-get payload :edits)))
    (let ((text (plist-get payload :result)))
      (make-qwen-companion-texts-merged
       :edits (qwen-companion-texts--numbers edits)
       :text-buffer (and text (qwen-companion-texts--buffer text))
       :conflicts (plist-get payload :conflicts)))))

(defun qwen-companion-texts--numbers (payload)
  "Return the vector of integers that PAYLOAD carries."
  (with-temp-buffer
    (insert "[")
    (qwen-companion-backend-insert-text payload)
    (goto-char (point-max))
    (insert "]")
    (goto-char (point-min))
    (read (current-buffer))))

(defun qwen-companion-texts--buffer (payload)
  "Return a new buffer with the text that PAYLOAD carries."
  (with-current-buffer (generate-new-buffer " *qwen-companion text*" t)
    (buffer-disable-undo)
    (qwen-companion-backend-insert-text payload)
    (current-buffer)))

;;; Applying

(defun qwen-companion-texts-apply (merged theirs)
  "Change the text of the current buffer by the edits of MERGED.
The buffer holds \"mine\" and THEIRS is the buffer with \"theirs\", as they
were when the merge was asked for.  All of it is one undo step.  Whether
the buffer counts as modified is not dealt with."
  (let ((edits (qwen-companion-texts-merged-edits merged))
        (source (or (qwen-companion-texts-merged-text-buffer merged) theirs))
        (inhibit-read-only t))
    (with-current-buffer source (widen))
    (undo-boundary)
    (save-restriction
      (widen)
      (cl-loop for index from (- (length edits) 4) downto 0 by 4
               do (goto-char (1+ (aref edits index)))
               (insert-buffer-substring-no-properties
                source
                (1+ (aref edits (+ index 2))) (1+ (aref edits (+ index 3))))
               (delete-region (point) (+ (point) (- (aref edits (+ index 1)) (aref edits index))))))
    (undo-boundary)
    (unless (eq source theirs)
      (kill-buffer source))))

(provide 'qwen-companion-texts)
;;; qwen-companion-texts.el ends here
