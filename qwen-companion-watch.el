;;; qwen-companion-watch.el --- Which visited files are written  -*- lexical-binding: t; -*-

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

;; Buffers have the directories of their files watched.  An event is only
;; noted: there may be thousands.  A moment later, when no more come, the
;; functions on `qwen-companion-watch-functions' get the buffers whose files
;; are to be looked at.
;;
;; A directory that cannot be watched, or has too many events, is looked at
;; now and then instead.

;;; Code:

(require 'cl-lib)
(require 'filenotify)
(require 'subr-x)
(require 'qwen-companion-backend)

(defconst qwen-companion-watch-quiet 0.05
  "Seconds without an event after which files are looked at.")

(defconst qwen-companion-watch-patience 0.5
  "Seconds after the first event after which files are looked at anyway.")

(defconst qwen-companion-watch--burst 150
  "Most events of a directory that are taken at a time.
More, as a branch switch makes, cost more than looking at the files.")

(defconst qwen-companion-watch--rest 1.5
  "Seconds without an event after which a file that is open counts as written.")

(defconst qwen-companion-watch--unwatched '(0.5 . 5)
  "Seconds between two looks at the files of a directory without a watch.
\(BURST . NONE): while it has too many events, and if there is no watch.")

(defvar qwen-companion-watch-functions nil
  "Abnormal hook run with a list of buffers whose files may have been written.")

(defvar qwen-companion-watch-event-functions nil
  "Abnormal hook run with a buffer, at once when there is an event of its file.")

(cl-defstruct (qwen-companion-watch--watch (:copier nil))
  "A DIRECTORY with visited files.
BUFFERS visit them.  DESCRIPTOR is that of its watch, nil when there is
none; TIMER looks again then.  CLOSED is the descriptor of inotify's
watch for files that are closed, which filenotify does not know.  EVENTS
counts those that came since the files were looked at."
  directory buffers descriptor closed timer (events 0))

(defvar qwen-companion-watch--watches (make-hash-table :test #'equal)
  "The watches: directory to `qwen-companion-watch--watch'.")
(defvar qwen-companion-watch--files (make-hash-table :test #'equal)
  "The buffers of watched files: true name to list of buffers.")
(defvar qwen-companion-watch--written (make-hash-table :test #'equal)
  "The watched files that were changed and not closed since: time of that.")
(defvar qwen-companion-watch--noisy nil
  "The watches with events that nobody has looked after.")
(defvar qwen-companion-watch--times nil
  "When the first and the last of these events came: (FIRST . LAST).")
(defvar qwen-companion-watch--renames nil
  "The files that were renamed: alist (OLD . NEW).")
(defvar qwen-companion-watch--timer nil
  "Timer that looks after the events, nil when there are none.")

(defvar qwen-companion-watch--places (make-hash-table :test #'eq)
  "What is watched for a buffer: (FILE . DIRECTORIES).
It may visit another file by now.")

;;; Which files

(defun qwen-companion-watch-p ()
  "Return non-nil when the file of the current buffer is watched."
  (and (gethash (current-buffer) qwen-companion-watch--places) t))

(defun qwen-companion-watch-file (file directories)
  "Watch FILE, which the current buffer visits, in DIRECTORIES.
FILE is its true name.  In place of a directory that does not exist, the
nearest one above is watched; so call this again when it may exist."
  (let ((place (cons file (mapcar #'qwen-companion-watch--existing directories))))
    (unless (equal place (gethash (current-buffer) qwen-companion-watch--places))
      (qwen-companion-watch-stop)
      (puthash (current-buffer) place qwen-companion-watch--places)
      (push (current-buffer) (gethash file qwen-companion-watch--files)))
    (dolist (directory (cdr place))
      (let ((watch (or (gethash directory qwen-companion-watch--watches)
                       (puthash directory
                                (make-qwen-companion-watch--watch :directory directory)
                                qwen-companion-watch--watches))))
        (cl-pushnew (current-buffer) (qwen-companion-watch--watch-buffers watch))
        (unless (or (qwen-companion-watch--watch-descriptor watch)
                    (qwen-companion-watch--watch-timer watch))
          (qwen-companion-watch--open watch))))))

(defun qwen-companion-watch--existing (directory)
  "Return the nearest directory above DIRECTORY, or itself, that exists."
  (let ((file-name-handler-alist nil))
    (while (not (file-directory-p directory))
      (setq directory (file-name-directory (directory-file-name directory))))
    directory))

(defun qwen-companion-watch-stop ()
  "Watch nothing any more for the current buffer."
  (pcase-let ((`(,file . ,directories)
               (gethash (current-buffer) qwen-companion-watch--places)))
    (if-let* ((buffers (remq (current-buffer)
                             (gethash file qwen-companion-watch--files))))
        (puthash file buffers qwen-companion-watch--files)
      (remhash file qwen-companion-watch--files))
    (dolist (directory directories)
      (when-let* ((watch (gethash directory qwen-companion-watch--watches)))
        (setf (qwen-companion-watch--watch-buffers watch)
              (delq (current-buffer) (qwen-companion-watch--watch-buffers watch)))
        (unless (qwen-companion-watch--watch-buffers watch)
          (qwen-companion-watch--close watch)
          (remhash directory qwen-companion-watch--watches)))))
  (remhash (current-buffer) qwen-companion-watch--places))

(defun qwen-companion-watch-written-p (file)
  "Return non-nil while a program is writing the watched FILE.
That is until it closes the file or rests; it is known with inotify only."
  (when-let* ((time (gethash file qwen-companion-watch--written)))
    (or (< (- (float-time) time) qwen-companion-watch--rest)
        (ignore (remhash file qwen-companion-watch--written)))))

(defun qwen-companion-watch-new-name (file)
  "Return the name that the watched FILE was given, nil when it has its own."
  (alist-get file qwen-companion-watch--renames nil nil #'equal))

(defun qwen-companion-watch-forget-names ()
  "Forget which files were renamed: all buffers concerned know."
  (setq qwen-companion-watch--renames nil))

(defun qwen-companion-watch-forget ()
  "Forget the events that came, and look after none."
  (when qwen-companion-watch--timer
    (cancel-timer qwen-companion-watch--timer))
  (setq qwen-companion-watch--timer nil
        qwen-companion-watch--noisy nil
        qwen-companion-watch--times nil
        qwen-companion-watch--renames nil)
  (clrhash qwen-companion-watch--written))

;;; Watches

(declare-function inotify-add-watch "ext:inotify.c" (filename aspect callback))
(declare-function inotify-rm-watch "ext:inotify.c" (watch-descriptor))
(defvar file-notify--library)

(defun qwen-companion-watch--open (watch)
  "Begin to watch the directory of WATCH; without success look now and then."
  (condition-case err
      (setf (qwen-companion-watch--watch-descriptor watch)
            (file-notify-add-watch
             (qwen-companion-watch--watch-directory watch) '(change)
             (lambda (event) (qwen-companion-watch--noticed watch event)))
            (qwen-companion-watch--watch-closed watch)
            (and (eq file-notify--library 'inotify)
                 (ignore-error file-notify-error
                   (inotify-add-watch
                    (directory-file-name (qwen-companion-watch--watch-directory watch))
                    '(close-write)
                    (lambda (event) (qwen-companion-watch--closed watch event))))))
    (file-notify-error
     (qwen-companion-watch--look-later watch (cdr qwen-companion-watch--unwatched))
     (qwen-companion-backend-notice-once
      (format "some directories cannot be watched (%s); what is written there shows after up to %d seconds"
              (error-message-string err) (cdr qwen-companion-watch--unwatched))))))

(defun qwen-companion-watch--close (watch)
  "Stop to watch the directory of WATCH."
  (when-let* ((timer (qwen-companion-watch--watch-timer watch)))
    (cancel-timer timer)
    (setf (qwen-companion-watch--watch-timer watch) nil))
  (when-let* ((descriptor (qwen-companion-watch--watch-descriptor watch)))
    ;; First, because the end of a watch is an event too.
    (setf (qwen-companion-watch--watch-descriptor watch) nil)
    (file-notify-rm-watch descriptor))
  (qwen-companion-watch--close-closed watch))

(defun qwen-companion-watch--close-closed (watch)
  "Learn no more which files of WATCH are closed: none is known to be open."
  (when-let* ((descriptor (qwen-companion-watch--watch-closed watch)))
    (setf (qwen-companion-watch--watch-closed watch) nil)
    ;; It may be gone with its directory.
    (ignore-error file-notify-error
      (inotify-rm-watch descriptor)))
  (maphash (lambda (file _time)
             (when (string-prefix-p (qwen-companion-watch--watch-directory watch) file)
               (remhash file qwen-companion-watch--written)))
           qwen-companion-watch--written))

(defun qwen-companion-watch--look-later (watch seconds)
  "In SECONDS have the files of WATCH looked at, and try to watch it again."
  (setf (qwen-companion-watch--watch-timer watch)
        (run-at-time seconds nil
                     (lambda ()
                       (setf (qwen-companion-watch--watch-timer watch) nil)
                       (when (file-directory-p (qwen-companion-watch--watch-directory watch))
                         (qwen-companion-watch--open watch))
                       (qwen-companion-watch--tell watch)))))

(defun qwen-companion-watch--tell (watch)
  "Have the files of WATCH looked at."
  (run-hook-with-args 'qwen-companion-watch-functions
                      (qwen-companion-watch--watch-buffers watch)))

;;; Events

(defun qwen-companion-watch--noticed (watch event)
  "Note EVENT in the directory of WATCH."
  (pcase-let ((`(,descriptor ,action ,file ,new) event))
    (when (equal descriptor (qwen-companion-watch--watch-descriptor watch))
      (qwen-companion-watch--note watch)
      (cond
       ((eq action 'stopped)
        ;; The directory has gone.
        (setf (qwen-companion-watch--watch-descriptor watch) nil)
        (qwen-companion-watch--close-closed watch))
       ((> (qwen-companion-watch--watch-events watch)
           qwen-companion-watch--burst)
        (qwen-companion-watch--close watch)
        (qwen-companion-watch--look-later
         watch (car qwen-companion-watch--unwatched)))
       (t
        (when (eq action 'renamed)
          (push (cons file new) qwen-companion-watch--renames))
        (if (and (memq action '(created changed))
                 (qwen-companion-watch--watch-closed watch)
                 (gethash file qwen-companion-watch--files))
            (puthash file (float-time) qwen-companion-watch--written)
          (remhash (or new file) qwen-companion-watch--written))
        (dolist (buffer (gethash (or new file) qwen-companion-watch--files))
          (run-hook-with-args 'qwen-companion-watch-event-functions buffer)))))))

(defun qwen-companion-watch--closed (watch event)
  "Note inotify's EVENT in the directory of WATCH: a file was closed."
  (pcase-let ((`(,descriptor ,_ ,name . ,_) event))
    (when (and (equal descriptor (qwen-companion-watch--watch-closed watch))
               (stringp name))
      (let ((file (concat (qwen-companion-watch--watch-directory watch) name)))
        (when (gethash file qwen-companion-watch--written)
          (remhash file qwen-companion-watch--written)
          (qwen-companion-watch--note watch))))))

(defun qwen-companion-watch--note (watch)
  "Note an event in the directory of WATCH, to be looked after in a moment."
  (let ((now (float-time)))
    (if qwen-companion-watch--times
        (setcdr qwen-companion-watch--times now)
      (setq qwen-companion-watch--times (cons now now))))
  (when (= 1 (cl-incf (qwen-companion-watch--watch-events watch)))
    (push watch qwen-companion-watch--noisy))
  (unless qwen-companion-watch--timer
    (qwen-companion-watch--arm qwen-companion-watch-quiet)))

(defun qwen-companion-watch--arm (seconds)
  "Look after the noted events in SECONDS."
  (setq qwen-companion-watch--timer
        (run-at-time seconds nil #'qwen-companion-watch--look-after)))

(defun qwen-companion-watch--look-after ()
  "Have the files with events looked at, once no more come."
  (setq qwen-companion-watch--timer nil)
  (pcase-let* ((`(,first . ,last) qwen-companion-watch--times)
               (now (float-time))
               (quiet (- now last)))
    ;; Less than nothing when the clock was set back.
    (if (and (<= 0 quiet)
             (< quiet qwen-companion-watch-quiet)
             (< (- now first) qwen-companion-watch-patience))
        (qwen-companion-watch--arm (- qwen-companion-watch-quiet quiet))
      (let ((watches qwen-companion-watch--noisy))
        (setq qwen-companion-watch--times nil
              qwen-companion-watch--noisy nil)
        (dolist (watch watches)
          (setf (qwen-companion-watch--watch-events watch) 0)
          (qwen-companion-watch--tell watch))))))

(provide 'qwen-companion-watch)
;;; qwen-companion-watch.el ends here
